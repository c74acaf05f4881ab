//! The body of a request on its way out.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Version, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use tokio::time::timeout;

use crate::reason::Reason;
use crate::upstream::{Body, BodyError};

/// What is still taken of a body after its answer, and how long.
const REST: (usize, Duration) = (64 * 1024, Duration::from_secs(2));

/// The body, ended by an error where it is larger than the rule allows.
pub(super) fn limited(parts: &Parts, body: RequestBody, limit: Option<u64>) -> Result<Body, Reason> {
    let Some(limit) = limit else { return Ok(body.boxed_unsync()) };
    let announced = parts.headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(Reason::BodyTooLarge { limit });
    }
    Ok(Limited::new(body, usize::try_from(limit).unwrap_or(usize::MAX)).boxed_unsync())
}

/// A body that nobody may read to its end.
///
/// A server may answer before it has read a request to its end, and read no further (RFC 9113, 8.1); so do we when
/// we refuse. The RST_STREAM of that reaches the client together with the answer, and curl 7.88 then knows nothing of the answer. So a short rest of
/// the body is taken from the client and thrown away, which ends the stream in the usual way.
pub(super) struct RequestBody {
    /// Until it is dropped.
    body: Option<Incoming>,
    multiplexed: bool,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, version: Version) -> Self {
        Self { body: Some(body), multiplexed: version == Version::HTTP_2 }
    }
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| self.multiplexed && !body.is_end_stream()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (most, patience) = REST;
        let mut rest = Limited::new(body, most);
        runtime.spawn(timeout(patience, async move { while let Some(Ok(_)) = rest.frame().await {} }));
    }
}
