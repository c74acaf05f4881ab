//! Answers: our own refusals, and what is passed on from outside.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, UPGRADE};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::ext::ReasonPhrase;

use super::room::Room;
use super::target::end_to_end;
use super::{Lasting, MARK};
use crate::proxy::{Changes, revoked};
use crate::reason::{Reason, Refusal};
use crate::scan::{Scanner, is_plain};
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

/// An answer from outside, each part as it comes; cut off when it is no longer `allowed`, and before a secret that `lookout`
/// looks for.
pub(crate) fn passed_on(
    response: Response<Incoming>,
    changes: Changes,
    allowed: Lasting,
    lookout: Option<Lookout>,
    room: Room,
) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    clean(&mut parts.headers);
    let lookout = lookout.filter(|_| is_plain(&parts.headers));
    Response::from_parts(
        parts,
        Guarded { body, until: Until::Asked(Some((changes, allowed))), lookout, last: None, _room: room }.boxed_unsync(),
    )
}

/// Leaves out what in the head of an answer holds a secret.
pub(crate) fn hide(response: &mut Response<Incoming>, lookout: &Lookout) {
    lookout.clean(response.headers_mut());
    if response.extensions().get::<ReasonPhrase>().is_some_and(|phrase| lookout.scanner.holds(phrase.as_bytes())) {
        response.extensions_mut().remove::<ReasonPhrase>();
        (lookout.tell)("reason phrase".to_owned());
    }
}

/// Looks for a secret in an answer, and tells where it was.
pub(crate) struct Lookout {
    pub(crate) scanner: Scanner,
    pub(crate) tell: Box<dyn Fn(String) + Send>,
}

impl Lookout {
    fn clean(&self, headers: &mut http::HeaderMap) {
        for name in self.scanner.clean(headers) {
            // The name itself may be what was found.
            let shown = if self.scanner.holds(name.as_str().as_bytes()) { "name" } else { name.as_str() };
            (self.tell)(format!("header {shown}"));
        }
    }
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
    lookout: Option<Lookout>,
    /// What follows the bytes that were held back.
    last: Option<Frame<Bytes>>,
    _room: Room,
}

impl hyper::body::Body for Guarded {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if this.until.is_over(cx, false) {
            return Poll::Ready(Some(Err(Reason::Revoked.into())));
        }
        if let Some(frame) = this.last.take() {
            return Poll::Ready(Some(Ok(frame)));
        }
        loop {
            let frame = match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(frame) => frame.transpose()?,
                Poll::Pending if this.until.is_over(cx, true) => return Poll::Ready(Some(Err(Reason::Revoked.into()))),
                Poll::Pending => return Poll::Pending,
            };
            let Some(lookout) = &mut this.lookout else { return Poll::Ready(frame.map(Ok)) };
            let next = match frame.map(Frame::into_data) {
                Some(Ok(data)) => match lookout.scanner.feed(data) {
                    // All of it may be the beginning of the value.
                    Ok(data) if data.is_empty() => continue,
                    Ok(data) => Some(Frame::data(data)),
                    Err(found) => {
                        (lookout.tell)("body".to_owned());
                        this.lookout = None;
                        return Poll::Ready(Some(Err(found.into())));
                    }
                },
                rest => {
                    let held = lookout.scanner.finish();
                    let mut frame = rest.and_then(Result::err);
                    if let Some(trailers) = frame.as_mut().and_then(Frame::trailers_mut) {
                        lookout.clean(trailers);
                    }
                    if held.is_empty() {
                        frame
                    } else {
                        this.last = frame;
                        Some(Frame::data(held))
                    }
                }
            };
            return Poll::Ready(next.map(Ok));
        }
    }

    fn is_end_stream(&self) -> bool {
        let held = self.lookout.as_ref().is_some_and(|lookout| lookout.scanner.held() > 0);
        !held && self.last.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.lookout.as_ref().map_or(0, |lookout| lookout.scanner.held() as u64);
        let (rest, mut hint) = (self.body.size_hint(), SizeHint::new());
        hint.set_lower(rest.lower().saturating_add(held));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint
    }
}
