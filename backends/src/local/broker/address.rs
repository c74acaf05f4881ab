//! What a socket address asks for, and where its path starts.

/// The largest address that the kernel takes (`sizeof(struct sockaddr_storage)`).
pub(super) const LARGEST: usize = 128;
/// The largest `struct sockaddr_un`: the family and 108 bytes of path.
const LARGEST_UNIX: usize = 2 + 108;

/// The meaning of an address for an `AF_UNIX` socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnixAddress<'a> {
    /// A path: never empty, without NUL.
    Path(&'a [u8]),
    /// A name that is no file.
    Abstract,
    /// Nothing that could name a socket: the kernel refuses it, or dissolves a datagram association.
    Other,
}

impl<'a> UnixAddress<'a> {
    /// Reads the bytes as `unix_mkname_bsd` and its callers do: the path ends at the address's end or the first NUL.
    pub(super) fn parse(address: &'a [u8]) -> Self {
        let Some((family, path)) = address.split_first_chunk::<2>() else { return Self::Other };
        let family = libc::c_int::from(libc::sa_family_t::from_ne_bytes(*family));
        if family != libc::AF_UNIX || path.is_empty() || address.len() > LARGEST_UNIX {
            return Self::Other;
        }
        match path.iter().position(|b| *b == 0).map_or(path, |end| path.split_at(end).0) {
            [] => Self::Abstract,
            path => Self::Path(path),
        }
    }
}

/// Where the resolution of a path starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start<'a> {
    /// The caller's root directory, with the whole path.
    Root(&'a [u8]),
    /// The caller's working directory, with the whole path.
    WorkingDirectory(&'a [u8]),
    /// A link of the caller's own `/proc` directory (`fd/3`, `cwd`, `root`), with what follows; empty if nothing does.
    Own { link: &'a [u8], rest: &'a [u8] },
}

impl<'a> Start<'a> {
    /// Finds the start. `/proc/self` means the caller, who is not the one who resolves the path.
    pub(super) fn of(path: &'a [u8]) -> Self {
        let own = [&b"/proc/self/"[..], b"/proc/thread-self/"].iter().find_map(|prefix| path.strip_prefix(*prefix));
        // `/dev/fd` is a symlink to `/proc/self/fd`.
        let own = own.or_else(|| path.strip_prefix(b"/dev/").filter(|rest| rest.starts_with(b"fd/")));
        match own.and_then(own_link) {
            Some((link, rest)) => Self::Own { link, rest },
            None if path.starts_with(b"/") => Self::Root(path),
            None => Self::WorkingDirectory(path),
        }
    }
}

fn own_link(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = if let Some(number) = path.strip_prefix(b"fd/") {
        let digits = number.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        3 + digits
    } else if path.starts_with(b"cwd") {
        3
    } else if path.starts_with(b"root") {
        4
    } else {
        return None;
    };
    let (link, rest) = path.split_at_checked(end)?;
    match rest {
        [] => Some((link, rest)),
        [b'/', ..] => {
            let slashes = rest.iter().take_while(|b| **b == b'/').count();
            let rest = rest.split_at(slashes).1;
            Some((link, if rest.is_empty() { b"." } else { rest }))
        }
        _ => None,
    }
}

/// The address that connects to the file behind descriptor `fd` of this process.
pub(super) fn of_descriptor(fd: i32) -> Vec<u8> {
    let mut address = libc::sa_family_t::to_ne_bytes(libc::AF_UNIX as libc::sa_family_t).to_vec();
    address.extend_from_slice(format!("/proc/self/fd/{fd}\0").as_bytes());
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(family: i32, path: &[u8]) -> Vec<u8> {
        let mut address = (family as libc::sa_family_t).to_ne_bytes().to_vec();
        address.extend_from_slice(path);
        address
    }

    #[test]
    fn a_path_ends_at_nul_or_at_the_end() {
        let unix = |path: &[u8]| address(libc::AF_UNIX, path);
        assert_eq!(UnixAddress::parse(&unix(b"a/b\0c")), UnixAddress::Path(b"a/b"));
        assert_eq!(UnixAddress::parse(&unix(b"a/b")), UnixAddress::Path(b"a/b"));
        assert_eq!(UnixAddress::parse(&unix(&[b'x'; 108])), UnixAddress::Path(&[b'x'; 108]));
        assert_eq!(UnixAddress::parse(&unix(&[b'x'; 109])), UnixAddress::Other);
        assert_eq!(UnixAddress::parse(&unix(b"\0name")), UnixAddress::Abstract);
        assert_eq!(UnixAddress::parse(&unix(b"\0")), UnixAddress::Abstract);
        assert_eq!(UnixAddress::parse(&unix(b"")), UnixAddress::Other);
        assert_eq!(UnixAddress::parse(&address(libc::AF_UNSPEC, b"/x")), UnixAddress::Other);
        assert_eq!(UnixAddress::parse(&[1]), UnixAddress::Other);
        assert_eq!(UnixAddress::parse(&[]), UnixAddress::Other);
    }

    #[test]
    fn the_callers_own_links_are_told_from_other_paths() {
        let own = |link, rest| Start::Own { link, rest };
        assert_eq!(Start::of(b"/proc/self/fd/12/a/b"), own(b"fd/12", b"a/b"));
        assert_eq!(Start::of(b"/proc/thread-self/fd/1"), own(b"fd/1", b""));
        assert_eq!(Start::of(b"/dev/fd/7//../x"), own(b"fd/7", b"../x"));
        assert_eq!(Start::of(b"/dev/fd/7/"), own(b"fd/7", b"."));
        assert_eq!(Start::of(b"/proc/self/cwd/x"), own(b"cwd", b"x"));
        assert_eq!(Start::of(b"/proc/self/root"), own(b"root", b""));
        for other in
            [&b"/proc/self/fd/12x"[..], b"/proc/self/fd/", b"/proc/self/../1/fd/3", b"/proc/self/cwdx", b"/dev/cwd", b"/"]
        {
            assert_eq!(Start::of(other), Start::Root(other));
        }
        assert_eq!(Start::of(b"proc/self/fd/1"), Start::WorkingDirectory(b"proc/self/fd/1"));
    }

    #[test]
    fn a_descriptor_is_reached_by_its_link() {
        assert_eq!(UnixAddress::parse(&of_descriptor(31)), UnixAddress::Path(b"/proc/self/fd/31"));
    }
}
