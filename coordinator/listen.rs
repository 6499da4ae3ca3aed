//! Listening sockets, for the peers' port here and for the node's secure port.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener},
};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that the kernel keeps waiting.
const BACKLOG: i32 = 128;

/// A non-blocking listener. An unspecified address, `0.0.0.0` or `::`, means both families as in Go, so that
/// a default works on hosts and in clusters that have IPv6 alone. SO_REUSEADDR is set, as by Go.
///
/// # Errors
/// Those of the system.
pub fn listen(address: SocketAddr, port_sharing: bool) -> io::Result<TcpListener> {
    if address.ip().is_unspecified() {
        let both = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port());
        match open(both, port_sharing) {
            Ok(listener) => return Ok(listener),
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => return Err(why),
            // A host without IPv6.
            Err(_) if address.is_ipv4() => {}
            Err(why) => return Err(why),
        }
    }
    open(address, port_sharing)
}

fn open(address: SocketAddr, port_sharing: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    #[cfg(unix)]
    socket.set_reuse_port(port_sharing)?;
    if address.ip().is_unspecified() && address.is_ipv6() {
        // Some hosts have net.ipv6.bindv6only set.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn an_unspecified_address_is_reached_by_both_families() {
        for unspecified in ["0.0.0.0:0", "[::]:0"] {
            let listener = listen(unspecified.parse().unwrap(), false).unwrap();
            let port = listener.local_addr().unwrap().port();
            TcpStream::connect(("127.0.0.1", port)).unwrap();
            // A host without IPv6 has no ::1 to connect to.
            if TcpListener::bind("[::1]:0").is_ok() {
                TcpStream::connect(("::1", port)).unwrap();
            }
        }
    }

    #[test]
    fn one_address_is_that_address_and_a_taken_port_is_an_error() {
        let one = listen("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = one.local_addr().unwrap();
        assert!(address.ip().is_loopback());
        let why = listen(address, false).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::AddrInUse);
    }
}
