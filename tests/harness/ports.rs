//! Free loopback ports.
//!
//! A port is found by binding it and letting it go, so somebody else may take it before the server
//! that it is meant for. Two things make that rare: the search stays below 32768, where Linux begins
//! to hand out ports for outgoing connections, and this process never gives one port twice. Who
//! starts a server still tries again with other ports when it says that the address is in use.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Context, Result};

/// Below this are well-known ports and defaults of common servers.
const FIRST: u16 = 12_000;
/// Linux's `ip_local_port_range` begins here.
const PAST: u16 = 32_768;
/// Tries before the choice is left to the kernel: far more than a busy machine has servers.
const TRIES: usize = 2_000;

static GIVEN: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A port on 127.0.0.1 that was free a moment ago.
pub fn free() -> Result<u16> {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..TRIES {
        let port = rand::random_range(FIRST..PAST);
        if !given.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            given.insert(port);
            return Ok(port);
        }
    }
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .context("no free port on 127.0.0.1")?
        .port();
    given.insert(port);
    Ok(port)
}
