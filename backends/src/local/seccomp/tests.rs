#![allow(clippy::unwrap_used)]
use super::*;

#[test]
fn size() {
    let plan = SeccompPlan { strict: false, nested_sandbox: false, notify_connect: true, unix_sockets: true, unix_datagram: false, inet_sockets: true, deny_ipc: false };
    for arch in [Arch::X86_64, Arch::Aarch64] {
        let t = std::time::Instant::now();
        let p = compile(&plan, arch);
        if arch == Arch::X86_64 { for (i, x) in p.iter().enumerate() { println!("{i:3} {:02x} {:#x} {} {}", x.code, x.k, i + 1 + x.jt as usize, i+1+x.jf as usize); } }
        println!("{arch:?} {} {:?}", p.len(), t.elapsed());
    }
}
