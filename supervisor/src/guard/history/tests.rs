//! What needs no git. The rest is in `tests/in_sandbox.rs`.
#![allow(clippy::unwrap_used)]

use super::*;

fn wanted<'a>(path: &'a str, content: &'a [u8]) -> Wanted<'a> {
    Wanted { path: Path::new(path), content, symlink: false, crlf: true }
}

#[test]
fn what_no_checkout_makes_is_no_target() {
    for bad in ["", "/abs", "../up", "a/../b", ".git/hooks/pre-commit", "sub/.GIT/config"] {
        assert!(target(&wanted(bad, b"x"), Format::Sha1).is_none(), "{bad}");
    }
    for good in ["a", ".github/x", "a/.gitmodules"] {
        assert!(target(&wanted(good, b"x"), Format::Sha1).is_some(), "{good}");
    }
}

#[test]
fn line_ends_are_taken_back_only_as_git_would_have_made_them() {
    assert_eq!(without_cr(b"a\r\nb\r\n").unwrap(), b"a\nb\n");
    for bad in [&b"a\n"[..], b"a\r\nb\n", b"a\rb\r\n", b"a\r", b""] {
        assert_eq!(without_cr(bad), None, "{bad:?}");
    }
    let ids = |wanted: &Wanted<'_>| target(wanted, Format::Sha1).unwrap().ids.len();
    let with = wanted("a", b"a\r\n");
    assert_eq!([ids(&with), ids(&Wanted { crlf: false, ..with }), ids(&Wanted { symlink: true, ..with })], [2, 1, 1]);
}

#[test]
fn nothing_is_started_when_nothing_could_be_found() {
    struct Never;
    impl io::Read for Never {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Ok(0)
        }
    }
    impl Pipe for Never {
        fn feed(&mut self, _: &[u8]) {}
    }
    let look = |tips: &Tips, wanted: &[Wanted<'_>]| {
        look(tips, wanted, Budget::default(), |_| Ok((Never, |_: &mut Never| "it ended".to_owned())))
    };
    let tips = Tips { ids: vec![Id::Sha1([1; 20])], ..Tips::default() };
    let asked = look(&tips, &[wanted("a", b"x")]);
    assert_eq!((asked.excused, asked.incomplete.as_deref()), (vec![false], Some("it ended")));
    assert_eq!(look(&tips, &[wanted("../a", b"x")]).incomplete, None);
    assert_eq!(look(&Tips::default(), &[wanted("a", b"x")]).incomplete, None);
    let told = look(&Tips { unsupported: Some("why".into()), ..Tips::default() }, &[wanted("a", b"x")]);
    assert_eq!((told.excused, told.incomplete.as_deref()), (vec![false], Some("why")));
}
