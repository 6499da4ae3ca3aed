//! The socket under a connection. Where there is a guard, it is asked at every write to the kernel: between a
//! examine a replica's fence and the socket lie the queues of hyper and HTTP/2, and a process may be stopped
//! there.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use tokio::net::TcpStream;

/// Says whether anything may leave this process.
pub trait Guard: Send + Sync {
    /// Whether bytes may be written now.
    fn open(&self) -> bool;
    /// How long after that they may still arrive. What the kernel couldn't deliver by then ends the
    /// connection.
    fn late_write_max(&self) -> Duration;
}

/// What a client and the sockets of its connections have in common.
#[derive(Default)]
pub(crate) struct Line {
    /// Whether there is a connection, as far as is known.
    pub(crate) connected: AtomicBool,
    /// Those that have come about and not ended.
    sockets: AtomicUsize,
    /// Shared with the lines before and after this one.
    pub(crate) guard: Arc<OnceLock<Arc<dyn Guard>>>,
}

impl Line {
    /// A line under this guard.
    pub(crate) fn guarded(guard: &Arc<OnceLock<Arc<dyn Guard>>>) -> Arc<Self> {
        Arc::new(Self {
            guard: Arc::clone(guard),
            ..Self::default()
        })
    }

    fn is_open(&self) -> bool {
        self.guard.get().is_none_or(|guard| guard.open())
    }
}

/// A TCP connection that sends only while its guard is open. With the guard closed a write is an error, which
/// ends the connection, and what the kernel still holds of it is thrown away.
pub(crate) struct Socket {
    tcp: TokioIo<TcpStream>,
    line: Arc<Line>,
}

impl Socket {
    /// Round a connection that has come about.
    pub(crate) fn new(tcp: TokioIo<TcpStream>, line: Arc<Line>) -> Self {
        let late_write = line.guard.get().map(|guard| guard.late_write_max());
        if let Some(late_write) = late_write.filter(|late_write| !late_write.is_zero())
            && let Err(error) = give_up_after(tcp.inner(), late_write)
        {
            tracing::warn!(%error, "what a connection can't deliver will not be given up in time");
        }
        line.sockets.fetch_add(1, Ordering::AcqRel);
        Self { tcp, line }
    }

    fn admit(&self) -> io::Result<()> {
        if self.line.is_open() {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "not sent: this replica may not write now",
        ))
    }
}

/// Has the kernel break off a connection whose bytes were not acknowledged for so long.
#[cfg(target_os = "linux")]
fn give_up_after(tcp: &TcpStream, late_write: Duration) -> io::Result<()> {
    socket2::SockRef::from(tcp).set_tcp_user_timeout(Some(late_write))
}

/// Elsewhere the pings of HTTP/2 do, later.
#[cfg(not(target_os = "linux"))]
fn give_up_after(_: &TcpStream, _: Duration) -> io::Result<()> {
    Ok(())
}

impl Drop for Socket {
    fn drop(&mut self) {
        // With the last one gone, the next burst of requests lets one go ahead.
        if self.line.sockets.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.line.connected.store(false, Ordering::Release);
        }
        if !self.line.is_open() {
            // It is an error only where the peer has gone already.
            let _gone = self.tcp.inner().set_zero_linger();
        }
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(context, buffer)
    }
}

impl Write for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.admit()?;
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.admit()?;
        Pin::new(&mut self.tcp).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}

impl Connection for Socket {
    fn connected(&self) -> Connected {
        self.tcp.connected()
    }
}
