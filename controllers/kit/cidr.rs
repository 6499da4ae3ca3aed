//! Address ranges of both families, with the arithmetic that controllers of addresses share.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A range of addresses that have their first bits in common, as in `10.0.0.0/8`. The other bits are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    v6: bool,
    first: u128,
    bits: u32,
}

/// An address as a number, and whether it is one of IPv6.
fn number(address: IpAddr) -> (u128, bool) {
    match address {
        IpAddr::V4(address) => (u32::from(address).into(), false),
        IpAddr::V6(address) => (address.into(), true),
    }
}

/// Parses an address; numbers of IPv4 may have leading zeros, as Kubernetes has always accepted them.
fn sloppy(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    let mut parts = text.split('.').map(|part| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u8>().ok().filter(|_| digits)
    });
    let mut next = || parts.next().flatten();
    let address = Ipv4Addr::new(next()?, next()?, next()?, next()?);
    parts.next().is_none().then_some(IpAddr::V4(address))
}

impl Cidr {
    /// The range of a given prefix length that contains an address; `None` where the family has fewer bits.
    pub fn new(address: IpAddr, bits: u32) -> Option<Self> {
        let (number, v6) = number(address);
        let range = Self { v6, first: 0, bits };
        (bits <= range.width()).then(|| Self {
            first: number & !range.host_mask(),
            ..range
        })
    }

    /// Reads `address/bits`; bits of the address beyond `bits` are ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let bits = bits.parse().ok().filter(|_| digits)?;
        Self::new(sloppy(address)?, bits)
    }

    fn width(self) -> u32 {
        if self.v6 { 128 } else { 32 }
    }

    fn host_mask(self) -> u128 {
        let host_bits = self.width() - self.bits;
        match host_bits {
            128 => u128::MAX,
            bits => (1 << bits) - 1,
        }
    }

    /// Whether it is one of IPv6.
    pub fn is_v6(self) -> bool {
        self.v6
    }

    /// How many bits its addresses have in common.
    pub fn bits(self) -> u32 {
        self.bits
    }

    /// Its first address.
    pub fn first(self) -> IpAddr {
        self.address(self.first)
    }

    /// Its last address.
    pub fn last(self) -> IpAddr {
        self.address(self.first | self.host_mask())
    }

    fn address(self, number: u128) -> IpAddr {
        if self.v6 {
            IpAddr::V6(Ipv6Addr::from(number))
        } else {
            let low = u32::try_from(number & u128::from(u32::MAX));
            IpAddr::V4(Ipv4Addr::from(low.unwrap_or_default()))
        }
    }

    /// Whether an address lies in it.
    pub fn contains(self, address: IpAddr) -> bool {
        let (number, v6) = number(address);
        v6 == self.v6 && number & !self.host_mask() == self.first
    }

    /// Whether every address of another range lies in it; a range covers itself.
    pub fn covers(self, other: Self) -> bool {
        self.bits <= other.bits && self.contains(other.first())
    }

    /// Whether two ranges have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// The number of ranges with prefix length `bits` that it contains; `None` where they would be larger
    /// than it, or more than a u32 counts.
    pub fn blocks(self, bits: u32) -> Option<u32> {
        let more = bits.checked_sub(self.bits)?;
        (bits <= self.width() && more < 32).then(|| 1 << more)
    }

    /// The range of a given prefix length at an index within it, counted from 0.
    pub fn block(self, bits: u32, index: u32) -> Option<Self> {
        (index < self.blocks(bits)?).then(|| {
            let whole = Self { bits, ..self };
            Self {
                first: self.first | u128::from(index) << (self.width() - bits),
                ..whole
            }
        })
    }

    /// The indexes of the first and last range of prefix length `bits` that overlap another range; `None`
    /// where there is none.
    pub fn blocks_of(self, bits: u32, other: Self) -> Option<(u32, u32)> {
        let blocks = self.blocks(bits)?;
        if other.v6 != self.v6 || !self.overlaps(other) {
            return None;
        }
        if other.covers(self) {
            return Some((0, blocks - 1));
        }
        let shift = self.width() - bits;
        let place = |number: u128| u32::try_from((number - self.first) >> shift).ok();
        Some((place(other.first)?, place(other.first | other.host_mask())?))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first(), self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        Cidr::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn a_range_is_read_masked_and_written() {
        for (text, shown) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("010.001.0.0/16", "10.1.0.0/16"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("192.0.2.7/32", "192.0.2.7/32"),
            ("2001:DB8::ffff/48", "2001:db8::/48"),
            ("::/0", "::/0"),
            ("fd00::1/128", "fd00::1/128"),
        ] {
            assert_eq!(cidr(text).to_string(), shown);
        }
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0/8",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.256/8",
            "1.2.3.4.5/8",
            "::/129",
            "fd00:/8",
            "10.0.0.0/8/8",
            "a.b.c.d/8",
        ] {
            assert_eq!(Cidr::parse(text), None, "{text}");
        }
    }

    #[test]
    fn ranges_contain_cover_and_overlap() {
        assert!(cidr("10.0.0.0/8").contains("10.255.0.1".parse().unwrap()));
        assert!(!cidr("10.0.0.0/8").contains("11.0.0.1".parse().unwrap()));
        assert!(!cidr("::/0").contains("10.0.0.1".parse().unwrap()));
        assert!(cidr("10.0.0.0/8").covers(cidr("10.1.0.0/16")));
        assert!(!cidr("10.1.0.0/16").covers(cidr("10.0.0.0/8")));
        assert!(cidr("10.1.0.0/16").overlaps(cidr("10.0.0.0/8")));
        assert!(!cidr("10.1.0.0/16").overlaps(cidr("10.2.0.0/16")));
        assert!(!cidr("0.0.0.0/0").overlaps(cidr("::/0")));
        assert_eq!(cidr("192.0.2.0/25").last().to_string(), "192.0.2.127");
        assert_eq!(cidr("2001:db8::/126").last().to_string(), "2001:db8::3");
    }

    /// Upstream's table of indexes and blocks, across the border between the halves of an IPv6 address too.
    #[test]
    fn a_block_is_found_by_its_place_and_the_place_by_the_block() {
        for (cluster, bits, place, block) in [
            ("127.123.3.0/16", 24, 0, "127.123.0.0/24"),
            ("127.123.0.0/16", 24, 15, "127.123.15.0/24"),
            ("192.168.5.219/28", 32, 5, "192.168.5.213/32"),
            ("2001:db8:1234:3::/48", 64, 0, "2001:db8:1234::/64"),
            ("2001:db8:1234::/48", 64, 15, "2001:db8:1234:f::/64"),
            ("2001:db8:1234::/48", 64, 6425, "2001:db8:1234:1919::/64"),
            ("2001:0db8:1234:ff00::/56", 72, 0, "2001:db8:1234:ff00::/72"),
            (
                "2001:0db8:1234:ff00::/56",
                72,
                15,
                "2001:db8:1234:ff00:f00::/72",
            ),
            (
                "2001:0db8:1234:ff00::/56",
                72,
                6425,
                "2001:db8:1234:ff19:1900::/72",
            ),
            ("2001:0db8:1234:0::1234/64", 65, 0, "2001:db8:1234::/65"),
            (
                "2001:0db8:1234:0::1234/64",
                66,
                3,
                "2001:db8:1234:0:c000::/66",
            ),
            ("fd00::/112", 128, 65535, "fd00::ffff/128"),
        ] {
            let (cluster, block) = (cidr(cluster), cidr(block));
            assert_eq!(cluster.block(bits, place), Some(block));
            assert_eq!(cluster.blocks_of(bits, block), Some((place, place)));
        }
        assert_eq!(cidr("10.0.0.0/24").block(26, 4), None);
        assert_eq!(cidr("10.0.0.0/24").blocks(26), Some(4));
        assert_eq!(cidr("10.0.0.0/24").blocks(24), Some(1));
        assert_eq!(cidr("10.0.0.0/24").blocks(23), None);
        assert_eq!(cidr("::/0").blocks(64), None);
    }

    #[test]
    fn a_wider_or_narrower_range_takes_the_blocks_that_it_touches() {
        let cluster = cidr("10.0.0.0/16");
        for (other, places) in [
            ("10.0.0.0/8", Some((0, 255))),
            ("10.0.4.0/22", Some((4, 7))),
            ("10.0.4.128/25", Some((4, 4))),
            ("10.1.0.0/24", None),
            ("2001:db8::/32", None),
        ] {
            assert_eq!(cluster.blocks_of(24, cidr(other)), places, "{other}");
        }
    }
}
