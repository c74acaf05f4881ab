//! A place at which tests kill the program; nothing in the program itself.

#[cfg(not(test))]
pub(crate) fn point() {}

#[cfg(test)]
thread_local! {
    static LEFT: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
}

/// What a killed run unwinds with.
#[cfg(test)]
pub(crate) struct Killed;

#[cfg(test)]
pub(crate) fn point() {
    LEFT.with(|left| match left.get() {
        Some(0) => {
            left.set(None);
            std::panic::resume_unwind(Box::new(Killed));
        }
        Some(n) => left.set(Some(n - 1)),
        None => {}
    });
}

/// Runs `what` and kills it when it comes to a point for the `n`th time; `None` when it was killed.
#[cfg(test)]
pub(crate) fn killed_at<T>(n: u32, what: impl FnOnce() -> T) -> Option<T> {
    LEFT.with(|left| left.set(Some(n)));
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
    LEFT.with(|left| left.set(None));
    match outcome {
        Ok(value) => Some(value),
        Err(cause) if cause.is::<Killed>() => None,
        Err(cause) => std::panic::resume_unwind(cause),
    }
}
