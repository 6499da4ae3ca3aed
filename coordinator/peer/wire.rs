//! A connection, with TLS or without.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tonic::transport::server::Connected;

use crate::trust::Caller;

/// The kernel asks an idle connection's other end for a sign of life after so long, and again …
const PROBED_AFTER: Duration = Duration::from_secs(5);
const PROBED_EVERY: Duration = Duration::from_secs(2);
/// … and breaks it off when nothing was acknowledged for so long, be it a probe or what was sent.
#[cfg(target_os = "linux")]
const LOST_AFTER: Duration = Duration::from_secs(4);

/// Has the kernel find out that the other end's machine is gone, or the way to it: pings of HTTP/2 would wake
/// each replica of a fleet of fifty some 140 times a second. A process that hangs is found by the deadlines
/// of calls.
pub(super) fn give_up_the_lost(tcp: &TcpStream) {
    let socket = SockRef::from(tcp);
    let probes = TcpKeepalive::new()
        .with_time(PROBED_AFTER)
        .with_interval(PROBED_EVERY)
        .with_retries(2);
    let set = socket.set_tcp_keepalive(&probes);
    // Elsewhere what was sent is given up by the deadlines of calls alone.
    #[cfg(target_os = "linux")]
    let set = set.and_then(|()| socket.set_tcp_user_timeout(Some(LOST_AFTER)));
    if let Err(error) = set {
        tracing::warn!(%error, "a peer that is lost will not be noticed in time");
    }
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
}

pub(super) struct Wire {
    stream: Stream,
    caller: Caller,
    /// The connection is cut off when this ends; `None` afterwards, and where it ends by itself alone.
    ends: Option<BoxFuture<'static, ()>>,
    cut_off: bool,
}

impl Wire {
    fn new(stream: Stream, caller: Caller) -> Self {
        Self {
            stream,
            caller,
            ends: None,
            cut_off: false,
        }
    }

    pub(super) fn plain(tcp: TcpStream) -> Self {
        Self::new(Stream::Plain(tcp), Caller::Unproven)
    }

    pub(super) fn tls(stream: tokio_rustls::TlsStream<TcpStream>) -> Self {
        Self::new(Stream::Tls(Box::new(stream)), Caller::Named(Vec::new()))
    }

    /// Whose it is.
    pub(super) fn of(self, caller: Caller) -> Self {
        Self { caller, ..self }
    }

    /// Cuts it off when this ends.
    pub(super) fn ending_with(self, ends: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            ends: Some(ends.boxed()),
            ..self
        }
    }

    fn over(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(ends) = &mut self.ends
            && ends.poll_unpin(cx).is_ready()
        {
            self.ends = None;
            self.cut_off = true;
        }
        self.cut_off
    }
}

impl Connected for Wire {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.over(cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        match &mut this.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
