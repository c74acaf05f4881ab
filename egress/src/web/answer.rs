//! Answers: our own refusals, and what is passed on from outside.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, UPGRADE};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::ext::ReasonPhrase;

use super::MARK;
use super::target::end_to_end;
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

/// An answer from outside, each part as it comes; cut off when `revoked` comes, and before a secret that `watch` looks for.
pub(crate) fn passed_on(response: Response<Incoming>, revoked: Revoked, watch: Option<Watch>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    clean(&mut parts.headers);
    let watch = watch.filter(|_| is_plain(&parts.headers));
    Response::from_parts(parts, Guarded { body, revoked, watch, last: None }.boxed_unsync())
}

/// Leaves out what in the head of an answer holds a secret.
pub(crate) fn hide(response: &mut Response<Incoming>, watch: &Watch) {
    watch.clean(response.headers_mut());
    if response.extensions().get::<ReasonPhrase>().is_some_and(|phrase| watch.scanner.holds(phrase.as_bytes())) {
        response.extensions_mut().remove::<ReasonPhrase>();
        (watch.tell)("reason phrase".to_owned());
    }
}

/// Looks for a secret in an answer, and tells where it was.
pub(crate) struct Watch {
    pub(crate) scanner: Scanner,
    pub(crate) tell: Box<dyn Fn(String) + Send>,
}

impl Watch {
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
pub(crate) type Revoked = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Guarded {
    body: Incoming,
    revoked: Revoked,
    watch: Option<Watch>,
    /// What follows the bytes that were held back.
    last: Option<Frame<Bytes>>,
}

impl hyper::body::Body for Guarded {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if this.revoked.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(Reason::Revoked.into())));
        }
        if let Some(frame) = this.last.take() {
            return Poll::Ready(Some(Ok(frame)));
        }
        loop {
            let frame = ready!(Pin::new(&mut this.body).poll_frame(cx)).transpose()?;
            let Some(watch) = &mut this.watch else { return Poll::Ready(frame.map(Ok)) };
            let next = match frame.map(Frame::into_data) {
                Some(Ok(data)) => match watch.scanner.feed(data) {
                    // All of it may be the beginning of the value.
                    Ok(data) if data.is_empty() => continue,
                    Ok(data) => Some(Frame::data(data)),
                    Err(found) => {
                        (watch.tell)("body".to_owned());
                        this.watch = None;
                        return Poll::Ready(Some(Err(found.into())));
                    }
                },
                rest => {
                    let held = watch.scanner.finish();
                    let mut frame = rest.and_then(Result::err);
                    if let Some(trailers) = frame.as_mut().and_then(Frame::trailers_mut) {
                        watch.clean(trailers);
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
        let held = self.watch.as_ref().is_some_and(|watch| watch.scanner.held() > 0);
        !held && self.last.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.watch.as_ref().map_or(0, |watch| watch.scanner.held() as u64);
        let (rest, mut hint) = (self.body.size_hint(), SizeHint::new());
        hint.set_lower(rest.lower().saturating_add(held));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint
    }
}
