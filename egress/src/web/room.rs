//! Memory for requests under way and their heads, of which a sandbox has so much and no more.
//!
//! Each connection bounds its own (32 requests of HTTP/2 with 32 KiB each), but there may be thousands of connections, and a field that
//! is one byte on the wire (RFC 7541, 6.1) is some hundred in memory.

use std::sync::Arc;

use http::Request;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a field takes beside its bytes: in the map, and in the copy that a request is repeated from.
const FIELD: usize = 256;
/// What a request under way takes beside its head: tasks, and frames that wait.
const REQUEST: usize = 8 * 1024;

/// Taken for one request until its answer has gone.
pub(crate) type Room = OwnedSemaphorePermit;

/// Room for the head of `request`, if there is some left of `all` bytes.
pub(crate) fn room<B>(all: &Arc<Semaphore>, request: &Request<B>) -> Option<Room> {
    Arc::clone(all).try_acquire_many_owned(u32::try_from(size(request)).ok()?).ok()
}

fn size<B>(request: &Request<B>) -> usize {
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD);
    REQUEST + path + fields.sum::<usize>()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn many_small_fields_take_more_than_their_bytes() {
        let mut request = Request::get("https://a.test/path").body(()).unwrap();
        let bare = size(&request);
        (0..100).for_each(|_| _ = request.headers_mut().append("x", http::HeaderValue::from_static("")));
        assert_eq!(size(&request), bare + 100 * (1 + FIELD));
        let all = Arc::new(Semaphore::new(2 * size(&request)));
        let first = room(&all, &request);
        let second = room(&all, &request);
        assert!(first.is_some() && second.is_some() && room(&all, &request).is_none());
        drop(first);
        assert!(room(&all, &request).is_some());
    }
}
