//! The cluster's ranges of pod addresses and how nodes' blocks are cut from them, as the flags say.

use controllers_kit::{Flags, cidr::Cidr};

/// Upstream keeps a bitmap of an IPv6 range's blocks, and so does not cut it into more than 2^16.
const V6_BITS_MAX: u32 = 16;
/// What a node gets where no flag says so.
const MASK_V4: i64 = 24;
const MASK_V6: i64 = 64;

/// One range of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) cluster: Cidr,
    /// The bits of a node's block.
    pub(super) mask: u32,
    /// How many blocks there are.
    pub(super) blocks: u32,
}

/// What the flags ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    /// One per address family, in the order of the flag.
    pub(super) cluster: Vec<Range>,
    /// Ranges of Services, whose addresses pods must not have.
    pub(super) services: Vec<Cidr>,
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    text.trim().split(',').filter(|part| !part.is_empty())
}

/// The bits of a node's block of each family.
fn masks(flags: &Flags, cluster: &[Cidr]) -> Result<(i64, i64), &'static str> {
    let mask = flags.int("node-cidr-mask-size");
    let (v4, v6) = (
        flags.int("node-cidr-mask-size-ipv4"),
        flags.int("node-cidr-mask-size-ipv6"),
    );
    let or = |value, default| if value == 0 { default } else { value };
    let both = (or(v4, MASK_V4), or(v6, MASK_V6));
    if cluster.len() > 1 {
        return match mask {
            0 => Ok(both),
            _ => Err("usage of --node-cidr-mask-size is not allowed with dual-stack clusters"),
        };
    }
    let single_v6 = cluster.iter().any(|one| one.is_v6());
    if mask != 0 {
        return match (v4, v6) {
            (0, 0) => Ok((mask, mask)),
            _ => Err(
                "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed if --node-cidr-mask-size is set. For dual-stack clusters please unset it and use IPFamily specific flags",
            ),
        };
    }
    if v4 != 0 && single_v6 {
        return Err(
            "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster",
        );
    }
    if v6 != 0 && !single_v6 {
        return Err(
            "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster",
        );
    }
    Ok(both)
}

impl Ranges {
    /// Parses the flags.
    ///
    /// # Errors
    /// The first fault of the flags, in upstream's words.
    pub(super) fn of(flags: &Flags) -> Result<Self, String> {
        let allocator = flags.text("cidr-allocator-type");
        if allocator == "CloudAllocator" {
            return Err("--cidr-allocator-type is set to 'CloudAllocator' but cloud provider is not configured".to_owned());
        }
        let text = flags.text("cluster-cidr").trim();
        if text.is_empty() {
            return Err(
                "Controller: Must specify --cluster-cidr if --allocate-node-cidrs is set"
                    .to_owned(),
            );
        }
        let read = |(place, text): (usize, &str)| {
            Cidr::parse(text).ok_or_else(|| {
                format!(
                    "--cluster-cidr: invalid CIDR[{place}]: <nil> (invalid CIDR address: {text})"
                )
            })
        };
        let parts = text.split(',').enumerate();
        let cluster: Vec<Cidr> = parts.map(read).collect::<Result<_, _>>()?;
        let count = cluster.len();
        let families = [true, false].map(|v6| cluster.iter().any(|one| one.is_v6() == v6));
        if count > 1 && families.contains(&false) {
            // Upstream's text has no closing parenthesis.
            return Err(format!(
                "len of ClusterCIDRs=={count} and they are not configured as dual stack (at least one from each IPFamily"
            ));
        }
        if count > 2 {
            return Err(format!(
                "length of clusterCIDRs is:{count} more than max allowed of 2"
            ));
        }
        // A range of Services that can't be read is left out, as upstream does.
        let services: Vec<Cidr> = split(flags.text("service-cluster-ip-range"))
            .filter_map(Cidr::parse)
            .collect();
        if let [one, other] = services[..]
            && one.is_v6() == other.is_v6()
        {
            return Err(
                "serviceCIDR and secondaryServiceCIDR are not dualstack (from different IPfamiles)"
                    .to_owned(),
            );
        }
        let (v4, v6) = masks(flags, &cluster)?;
        let mask_of = |cluster: Cidr| {
            let mask = if cluster.is_v6() { v6 } else { v4 };
            u32::try_from(mask).unwrap_or(0)
        };
        if cluster.iter().any(|one| one.bits() > mask_of(*one)) {
            return Err("Controller: Invalid --cluster-cidr, mask size of cluster CIDR must be less than or equal to --node-cidr-mask-size configured for CIDR family".to_owned());
        }
        match allocator {
            "RangeAllocator" => {}
            "IPAMFromCluster" | "IPAMFromCloud" => {
                return Err(
                    "Error trying to Init(): legacy cloud provider support disabled at build time"
                        .to_owned(),
                );
            }
            other => return Err(format!("invalid CIDR allocator type: {other}")),
        }
        let range = |cluster: Cidr| -> Result<Range, String> {
            let mask = mask_of(cluster);
            let big = cluster.is_v6() && mask - cluster.bits() > V6_BITS_MAX;
            let blocks = cluster
                .blocks(mask)
                .filter(|_| !big)
                .ok_or("New CIDR set failed; the node CIDR size is too big".to_owned())?;
            Ok(Range {
                cluster,
                mask,
                blocks,
            })
        };
        Ok(Self {
            cluster: cluster.into_iter().map(range).collect::<Result<_, _>>()?,
            services,
        })
    }

    /// Whether the flag of Services' ranges has too many.
    pub(super) fn too_many_services(flags: &Flags) -> bool {
        flags.text("service-cluster-ip-range").split(',').count() > 2
    }
}

/// The taken blocks of a range: disjoint intervals of indexes, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Taken {
    places: std::collections::BTreeMap<u32, u32>,
    count: u32,
}

impl Taken {
    /// Takes the blocks from one index to another; whether any of them was free.
    pub(super) fn take(&mut self, first: u32, last: u32) -> bool {
        let (mut from, mut to) = (first, last);
        // Those that touch or overlap become one.
        let near: Vec<(u32, u32)> = self
            .places
            .range(..=last.saturating_add(1))
            .rev()
            .take_while(|(_, end)| end.saturating_add(1) >= first)
            .map(|(start, end)| (*start, *end))
            .collect();
        let mut held = 0;
        for (start, end) in near {
            self.places.remove(&start);
            held += end - start + 1;
            from = from.min(start);
            to = to.max(end);
        }
        self.places.insert(from, to);
        let more = to - from + 1 - held;
        self.count += more;
        more > 0
    }

    /// How many blocks are taken.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The first free block from a place on, wrapping round at the end, and the number of taken blocks that
    /// the search has passed; `None` where all are taken.
    pub(super) fn free(&self, from: u32, blocks: u32) -> Option<(u32, u32)> {
        if self.count >= blocks {
            return None;
        }
        let after = |place: u32| match self.places.range(..=place).next_back() {
            Some((_, end)) if *end >= place => end + 1,
            _ => place,
        };
        let from = from % blocks;
        let place = Some(after(from)).filter(|place| *place < blocks);
        let place = place.unwrap_or_else(|| after(0));
        let tries = if place >= from {
            place - from
        } else {
            blocks - from + place
        };
        Some((place, tries))
    }
}
