//! What messages cost, from what was measured: the model of a cluster is calibrated by it.

use crate::cluster::{Costs, MessageCosts, Network};
use crate::row::Row;
use anyhow::{Context, Result, ensure};

/// The costs of Wallaby's messages over a transport, from rows of [`super::latency()`] of processes on one core.
///
/// On one core nothing overlaps, so a chain's latency grows with each message by what that costs: somebody wakes up,
/// receives it, sends the next. What the client spends for each further answer of a fan is a receipt alone, for it is awake
/// then; and for each further plain call it is a receipt and a sending.
///
/// # Errors
/// A row is missing, or what was measured contradicts itself.
pub fn calibrate(rows: &[Row], transport: &str) -> Result<Costs> {
    let find = |bench: &str, system: &str, most: bool| {
        let of = rows
            .iter()
            .filter(|row| row.bench == bench && row.system == system && row.transport == transport);
        let found = match most {
            true => of.max_by_key(|row| row.n),
            false => of.min_by_key(|row| row.n),
        };
        let found =
            found.with_context(|| format!("no row of {system} {bench} over {transport}"))?;
        ensure!(
            found.pin.is_some() && found.link_us == 0,
            "not all were on one core"
        );
        anyhow::Ok(found)
    };
    let slope = |bench: &str, system: &str, figure: fn(&Row) -> f64| {
        let (first, last) = (find(bench, system, false)?, find(bench, system, true)?);
        ensure!(
            last.n > first.n,
            "{bench} of one size only says nothing of another"
        );
        anyhow::Ok((figure(last) - figure(first)) / (last.n - first.n) as f64)
    };
    let (hop, round_trip) = (
        slope("hops", "wallaby-dpc", latency)?,
        slope("hops", "wallaby-rpc", latency)?,
    );
    let receive = slope("fanout", "wallaby-dpc", client)?;
    let exchange = slope("fanout", "wallaby-rpc", client)?;
    let wake = (round_trip / 2.0 - exchange).max(0.0);
    let one = |system| anyhow::Ok(find("hops", system, false)?.p50_us);
    let positive = |what: &str, cost: f64| {
        ensure!(
            cost > 0.0,
            "{what} would cost {cost:.2} µs: measure again on a quiet machine"
        );
        Ok(rounded(cost))
    };
    Ok(Costs {
        name: "wallaby".into(),
        source: format!(
            "wallaby bench thesis over {transport} on one core: a hop {hop:.2} µs, a round trip {round_trip:.2} µs, of \
             the client's time {receive:.2} µs for each further answer and {exchange:.2} µs for each further call"
        ),
        multihop: MessageCosts {
            send_us: positive("sending", one("wallaby-dpc")? / 2.0 - wake - receive)?,
            receive_us: positive("receiving", receive)?,
            wake_us: rounded(wake),
            // A hop more is a message more, and whatever else it costs to pass a request on.
            pass_on_us: rounded((hop - one("wallaby-dpc")? / 2.0).max(0.0)),
            ..MessageCosts::default()
        },
        calls: MessageCosts {
            send_us: positive("sending", exchange - receive)?,
            receive_us: positive("receiving", receive)?,
            wake_us: rounded(wake),
            call_us: rounded((one("wallaby-rpc")? - round_trip).max(0.0)),
            ..MessageCosts::default()
        },
        network: Network::of_one_site(3.0, 25.0),
    })
}

fn latency(row: &Row) -> f64 {
    row.p50_us
}

fn client(row: &Row) -> f64 {
    row.client_cpu_us.unwrap_or(0.0)
}

/// To hundredths: more digits say nothing.
fn rounded(cost: f64) -> f64 {
    (cost * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::sample;

    fn rows() -> Vec<Row> {
        // Waking 2, receiving 1, sending 3 (a plain call: 2.5), passing on 0.5 more.
        let row = |bench: &str, system: &str, n, p50_us, client| Row {
            bench: bench.into(),
            client_cpu_us: Some(client),
            ..sample(system, "udp", n, p50_us)
        };
        vec![
            row("hops", "wallaby-dpc", 1, 12.0, 6.0),
            row("hops", "wallaby-dpc", 10, 70.5, 6.0),
            row("hops", "wallaby-rpc", 1, 11.0, 5.5),
            row("hops", "wallaby-rpc", 10, 110.0, 55.0),
            row("fanout", "wallaby-dpc", 1, 18.0, 6.0),
            row("fanout", "wallaby-dpc", 11, 90.0, 16.0),
            row("fanout", "wallaby-rpc", 1, 22.0, 11.0),
            row("fanout", "wallaby-rpc", 11, 100.0, 46.0),
        ]
    }

    #[test]
    fn costs_are_what_the_rows_are_made_of() {
        let costs = calibrate(&rows(), "udp").unwrap();
        let figures = |costs: MessageCosts| {
            (
                costs.wake_us,
                costs.receive_us,
                costs.send_us,
                costs.pass_on_us,
            )
        };
        assert_eq!(figures(costs.multihop), (2.0, 1.0, 3.0, 0.5));
        assert_eq!(figures(costs.calls), (2.0, 1.0, 2.5, 0.0));
    }

    #[test]
    fn what_says_nothing_is_refused() {
        assert!(calibrate(&rows(), "tcp").is_err());
        let mut apart = rows();
        apart[0].pin = None;
        assert!(calibrate(&apart, "udp").is_err());
        let mut noisy = rows();
        noisy[5].client_cpu_us = Some(0.0);
        assert!(
            calibrate(&noisy, "udp")
                .unwrap_err()
                .to_string()
                .contains("quiet")
        );
    }
}
