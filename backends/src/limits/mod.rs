pub mod watchdog;
