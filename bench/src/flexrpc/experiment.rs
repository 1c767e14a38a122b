//! The paper's figures, and what is measured for each.

use super::callee::Callee;
use super::{Link, Load, MOST_DEGREE, Way};
use crate::fleet::Transport;
use anyhow::{Result, bail};
use std::str::FromStr;

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Figures 4 and 5: latency, and bandwidth, of single calls over the size of their argument.
    Single,
    /// Figure 6: calls from several threads.
    Callers,
    /// Figure 7: multicast to three servers over the size of the argument.
    Sizes,
    /// Figure 8 (a): multicast to three servers from several callers.
    MulticastCallers,
    /// Figure 8 (b): multicast over its degree.
    Degree,
}

impl Figure {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Single,
        Self::Callers,
        Self::Sizes,
        Self::MulticastCallers,
        Self::Degree,
    ];

    /// Its name in result rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "flexrpc-single",
            Self::Callers => "flexrpc-callers",
            Self::Sizes => "flexrpc-sizes",
            Self::MulticastCallers => "flexrpc-multicast-callers",
            Self::Degree => "flexrpc-degree",
        }
    }
}

impl FromStr for Figure {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "4" | "5" => Self::Single,
            "6" => Self::Callers,
            "7" => Self::Sizes,
            "8a" => Self::MulticastCallers,
            "8b" => Self::Degree,
            other => bail!("there is no figure {other:?}: choose 4, 5, 6, 7, 8a or 8b"),
        })
    }
}

/// A point of a figure.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) figure: Figure,
    pub(super) system: &'static str,
    pub(super) callee: Callee,
    pub(super) transport: Transport,
    pub(super) link: Link,
    pub(super) n: u64,
    pub(super) load: Load,
}

/// All that is measured for a figure.
pub(super) fn subjects(figure: Figure) -> Vec<Subject> {
    match figure {
        Figure::Single => [Transport::Udp, Transport::Tcp]
            .into_iter()
            .flat_map(single)
            .collect(),
        Figure::Callers => (1..=6).flat_map(callers).collect(),
        Figure::Sizes => MULTICAST_SIZES.into_iter().flat_map(sizes).collect(),
        Figure::MulticastCallers => [1, 2, 4, 6, 8, 10]
            .into_iter()
            .flat_map(|callers| multicasts(figure, callers, SAMPLE, callers, DEGREE))
            .collect(),
        Figure::Degree => (1..=MOST_DEGREE)
            .flat_map(|degree| multicasts(figure, degree, SAMPLE, 1, degree))
            .collect(),
    }
}

fn single(transport: Transport) -> Vec<Subject> {
    let (sizes, callees) = match transport {
        Transport::Udp => (&SIZES[..6], &OVER_UDP[..]),
        _ => (&SIZES[..], &OVER_TCP[..]),
    };
    let points = sizes
        .iter()
        .flat_map(|&bytes| callees.iter().map(move |&callee| (bytes, callee)));
    let subject = |(bytes, callee): (usize, Callee)| Subject {
        figure: Figure::Single,
        system: callee.system(),
        callee,
        transport,
        link: Link::Free,
        n: bytes as u64,
        load: Load {
            bytes,
            callers: 1,
            way: Way::Single,
        },
    };
    points.map(subject).collect()
}

fn callers(callers: usize) -> Vec<Subject> {
    let subject = |callee: Callee| Subject {
        figure: Figure::Callers,
        system: callee.system(),
        callee,
        transport: Transport::Tcp,
        link: Link::Free,
        n: callers as u64,
        load: Load {
            bytes: 16 * KIB,
            callers,
            way: Way::Single,
        },
    };
    OVER_TCP.into_iter().map(subject).collect()
}

fn sizes(bytes: usize) -> Vec<Subject> {
    multicasts(Figure::Sizes, bytes, bytes, 1, DEGREE)
}

fn multicasts(
    figure: Figure,
    n: usize,
    bytes: usize,
    callers: usize,
    degree: usize,
) -> Vec<Subject> {
    let subject = |multicast: &Multicast| Subject {
        figure,
        system: multicast.system,
        callee: multicast.callee,
        transport: Transport::Tcp,
        link: Link::Limited,
        n: n as u64,
        load: Load {
            bytes,
            callers,
            way: (multicast.way)(degree),
        },
    };
    MULTICASTS.iter().map(subject).collect()
}

/// A way to call several servers.
struct Multicast {
    system: &'static str,
    callee: Callee,
    way: fn(usize) -> Way,
}

const MULTICASTS: [Multicast; 5] = [
    Multicast {
        system: "floor-parallel",
        callee: Callee::Floor,
        way: Way::Parallel,
    },
    Multicast {
        system: "floor-serial",
        callee: Callee::Floor,
        way: Way::Serial,
    },
    Multicast {
        system: "libtirpc",
        callee: Callee::Tirpc,
        way: Way::Consecutive,
    },
    Multicast {
        system: "wallaby-parallel",
        callee: Callee::Wallaby,
        way: Way::Parallel,
    },
    Multicast {
        system: "wallaby-serial",
        callee: Callee::Wallaby,
        way: Way::Serial,
    },
];
const OVER_UDP: [Callee; 5] = [
    Callee::Floor,
    Callee::Tirpc,
    Callee::Onc,
    Callee::Polling,
    Callee::Wallaby,
];
const OVER_TCP: [Callee; 4] = [Callee::Floor, Callee::Tirpc, Callee::Onc, Callee::Wallaby];
const KIB: usize = 1_024;
/// The paper's; what does not fit into a datagram, or into libtirpc's, is last.
const SIZES: [usize; 9] = [
    0,
    KIB,
    2 * KIB,
    4 * KIB,
    8 * KIB,
    16 * KIB,
    64 * KIB,
    256 * KIB,
    1_024 * KIB,
];
const MULTICAST_SIZES: [usize; 7] = [
    KIB,
    4 * KIB,
    16 * KIB,
    32 * KIB,
    64 * KIB,
    256 * KIB,
    1_024 * KIB,
];
/// The paper's, of figures 7 and 8 (a).
const DEGREE: usize = 3;
/// The paper's, of figure 8.
const SAMPLE: usize = 32 * KIB;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_name_that_is_its_own() {
        for figure in Figure::ALL {
            let subjects = subjects(figure);
            assert!(!subjects.is_empty());
            assert!(subjects.iter().all(|subject| subject.figure == figure));
        }
        assert_eq!("4".parse::<Figure>().unwrap(), "5".parse().unwrap());
        assert!("9".parse::<Figure>().is_err());
    }

    #[test]
    fn datagrams_hold_what_is_sent_in_them() {
        let over_udp = subjects(Figure::Single).into_iter();
        let over_udp = over_udp.filter(|subject| subject.transport == Transport::Udp);
        assert!(over_udp.map(|subject| subject.load.bytes).max() == Some(16 * KIB));
    }
}
