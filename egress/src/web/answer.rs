//! Answers: our own refusals, and what is passed on from outside.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, UPGRADE};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Frame, Incoming, SizeHint};

use super::target::end_to_end;
use super::{Lasting, MARK};
use crate::proxy::{Changes, revoked};
use crate::reason::{Reason, Refusal};
use crate::upstream::{Body, BodyError};

/// A refusal, or a failure on the way, as HTTP.
pub(crate) fn refusal(refusal: &Refusal) -> Response<Body> {
    let json = serde_json::to_vec(refusal).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(json)).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = refusal.reason.status();
    let mark = if refusal.reason.is_failure() { "failed" } else { "refused" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(MARK, HeaderValue::from_static(mark));
    response
}

/// The same, and nothing more is read: behind a refused CONNECT, or a malformed head, whatever comes is no request.
pub(crate) fn last(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// No body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

/// The answer of a server that goes on as WebSocket.
pub(crate) fn switching(response: Response<Incoming>) -> Response<Body> {
    let (mut parts, _) = response.into_parts();
    clean(&mut parts.headers);
    parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    parts.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    Response::from_parts(parts, Empty::new().map_err(|never| match never {}).boxed_unsync())
}

/// An answer from outside, each part as it comes; cut off when it is no longer `allowed`.
pub(crate) fn passed_on(response: Response<Incoming>, changes: Changes, allowed: Lasting) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    clean(&mut parts.headers);
    Response::from_parts(parts, Guarded { body, until: Until::Asked(Some((changes, allowed))) }.boxed_unsync())
}

fn clean(headers: &mut http::HeaderMap) {
    end_to_end(headers);
    headers.remove(MARK);
    // RFC 7838: an invitation to another host, port or protocol, which is not reached from inside.
    headers.remove(HeaderName::from_static("alt-svc"));
}

/// Comes when the rules no longer allow it.
type Revoked = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Most answers are there as a whole when they are asked for, and then need nobody who waits for other rules.
enum Until {
    Asked(Option<(Changes, Lasting)>),
    Woken(Revoked),
}

impl Until {
    fn is_over(&mut self, cx: &mut Context<'_>, waiting: bool) -> bool {
        if let Self::Asked(asked) = self
            && let Some((changes, allowed)) = asked.take_if(|(changes, _)| waiting || changes.has_changed().unwrap_or(true))
        {
            *self = Self::Woken(Box::pin(revoked(changes, move |rules| allowed.allowed_by(rules))));
        }
        match self {
            Self::Asked(_) => false,
            Self::Woken(revoked) => revoked.as_mut().poll(cx).is_ready(),
        }
    }
}

struct Guarded {
    body: Incoming,
    until: Until,
}

impl hyper::body::Body for Guarded {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.until.is_over(cx, false) {
            return Poll::Ready(Some(Err(Reason::Revoked.into())));
        }
        let frame = Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into);
        if frame.is_pending() && self.until.is_over(cx, true) {
            return Poll::Ready(Some(Err(Reason::Revoked.into())));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
