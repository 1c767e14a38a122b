//! The one result row of all benchmarks: a line of JSON.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// What one system did in one benchmark. All counts are per operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The benchmark: `hops`, `fanout`, ...
    pub bench: String,
    /// The system: `wallaby-dpc`, `wallaby-rpc`, `floor-forward`, ..., or a peer's name.
    pub system: String,
    /// The transport: `unix`, `tcp`, `udp`, ...
    pub transport: String,
    /// The benchmark's parameter: servers in sequence, degree of fan-out, ...
    pub n: u64,
    /// Bytes of payload in a message.
    pub payload: u64,
    /// Emulated one-way delay of each message, in microseconds.
    pub link_us: u64,
    /// Emulated bandwidth of the link that all a process sends shares, in millions of bits per second, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_mbit: Option<u64>,
    /// What the links themselves take of an operation, in microseconds, where that was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ideal_us: Option<f64>,
    /// With how many bytes of state a chain would take as long as these calls, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crossing_bytes: Option<f64>,
    /// The processor that the client and all servers were pinned to; none: placed freely.
    pub pin: Option<u32>,
    /// The processor that the servers were pinned to, where it is another one than the client's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_pin: Option<u32>,
    /// How many rounds, interleaved with those of the other systems, the figures are from.
    pub rounds: u64,
    /// Median latency of an operation, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency of an operation, in microseconds.
    pub p99_us: f64,
    /// Processor time of the client and all servers per operation, in microseconds.
    pub cpu_us_per_op: f64,
    /// That of the client alone, where it was told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu_us: Option<f64>,
    /// Whose processor time it is, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// Operations per second, where throughput was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops_per_s: Option<f64>,
    /// Operations per second that were begun at random times, whether or not as many could be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_per_s: Option<f64>,
    /// Operations of these that could not begin: too many were under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
    /// The model that predicts the figures, if they are not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<String>,
    /// Messages sent by anybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<f64>,
    /// Messages that the client sent or received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_messages: Option<f64>,
    /// Bytes sent by anybody, payloads and headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
    /// Where it was measured what many of something cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
}

/// Whose the processor time of an operation is, in microseconds. Reading the clock for it is in none of the parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// The client's.
    pub client: Parts,
    /// That of all servers.
    pub servers: Parts,
    /// What reading the clock took, which is in `cpu_us_per_op` of the row, too.
    pub clock_us: f64,
}

/// The parts of processor time, as the thesis tells them apart in figure 6.6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// What works in the background: messages read and understood, the runtime, whatever nobody has called.
    pub protocol_us: f64,
    /// Calls of Wallaby's interface, until they return.
    pub interface_us: f64,
    /// What makes these calls.
    pub application_us: f64,
}

impl Parts {
    /// All of them.
    pub fn sum(&self) -> f64 {
        self.protocol_us + self.interface_us + self.application_us
    }
}

/// What many of something cost besides their operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Scale {
    /// Resident memory of the client for each live call or open connection; none where there were too few to tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_bytes: Option<f64>,
    /// The same of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_bytes: Option<f64>,
    /// Resident memory of an endpoint without connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_bytes: Option<f64>,
    /// The longest processor time of the client's thread between two steps forward, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_us: Option<f64>,
    /// What this time did not exceed but for one step in 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p9999_us: Option<f64>,
    /// The longest processor time of the server's thread between two requests, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_longest_us: Option<f64>,
}

impl Row {
    /// Whether both rows were measured under the same conditions, so that a ratio of them means something.
    pub fn comparable(&self, other: &Self) -> bool {
        self.bench == other.bench
            && self.transport == other.transport
            && self.n == other.n
            && self.payload == other.payload
            && self.link_us == other.link_us
            && self.link_mbit == other.link_mbit
            && self.pin == other.pin
            && self.simulated == other.simulated
            && self.offered_per_s == other.offered_per_s
            && self.server_pin == other.server_pin
    }

    /// Under which conditions it was measured or predicted, but for the benchmark and its numbers, in words.
    pub fn conditions(&self) -> String {
        let mut words = match &self.simulated {
            Some(costs) => format!("SIMULATED with the costs of {costs}, not measured"),
            None => format!("over {}, {}", self.transport, self.placement()),
        };
        if self.link_us > 0 {
            words += &format!(", links of {} ms one way", self.link_us as f64 / 1_000.0);
        }
        if let Some(mbit) = self.link_mbit {
            words += &format!(", each process's link {mbit} Mbit/s");
        }
        format!("{words}, {} rounds", self.rounds)
    }

    fn placement(&self) -> String {
        match (self.pin, self.server_pin) {
            (Some(client), Some(server)) => {
                format!("client on processor {client}, server on processor {server}")
            }
            (Some(cpu), None) => format!("all on processor {cpu}"),
            (None, Some(server)) => format!("client placed freely, server on processor {server}"),
            (None, None) => "placed freely".into(),
        }
    }
}

/// Writes rows as lines of JSON.
///
/// # Errors
/// The writer's.
pub fn write(rows: &[Row], mut output: impl Write) -> Result<()> {
    for row in rows {
        serde_json::to_writer(&mut output, row)?;
        output.write_all(b"\n")?;
    }
    output.flush()?;
    Ok(())
}

/// Reads lines of JSON written by [`write()`]; empty lines are passed over, and those that say what was not measured.
///
/// # Errors
/// The reader's, or a line that is no row, with its number.
pub fn read(input: impl BufRead) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (index, line) in input.lines().enumerate() {
        let line = line?;
        let is_note = line.starts_with(r#"{"skipped":"#);
        if !line.trim().is_empty() && !is_note {
            let row = serde_json::from_str(&line)
                .with_context(|| format!("line {} is not a result row", index + 1))?;
            rows.push(row);
        }
    }
    Ok(rows)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A row with some figures, for tests of whatever shows rows.
    pub(crate) fn sample(system: &str, transport: &str, n: u64, p50_us: f64) -> Row {
        Row {
            bench: "hops".into(),
            system: system.into(),
            transport: transport.into(),
            n,
            payload: 100,
            link_us: 0,
            link_mbit: None,
            pin: Some(0),
            server_pin: None,
            rounds: 20,
            p50_us,
            p99_us: p50_us * 2.0,
            cpu_us_per_op: p50_us * 0.9,
            messages: Some(3.0),
            ..Row::default()
        }
    }

    #[test]
    fn a_row_is_one_line_with_the_documented_fields() {
        let mut output = Vec::new();
        write(&[sample("floor-forward", "unix", 2, 16.5)], &mut output).unwrap();
        assert_eq!(
            String::from_utf8(output).unwrap(),
            concat!(
                r#"{"bench":"hops","system":"floor-forward","transport":"unix","n":2,"payload":100,"link_us":0,"#,
                r#""pin":0,"rounds":20,"p50_us":16.5,"p99_us":33.0,"cpu_us_per_op":14.85,"messages":3.0}"#,
                "\n"
            )
        );
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let rows = [sample("a", "tcp", 1, 1.25), sample("b", "udp", 10, 99.0)];
        let mut output = Vec::new();
        write(&rows, &mut output).unwrap();
        assert_eq!(read(output.as_slice()).unwrap(), rows);
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = read("\n{}\n".as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "line 2 is not a result row");
    }
}
