//! Messages between hosts as a picture: a column for each host, a line for each message.

use crate::time::show_micros;
use console::{Alignment, pad_str};
use serde::Serialize;

/// How far apart columns are.
const APART: usize = 10;
/// How wide the times before them are.
const TIMES: usize = 9;

/// A message from host to host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Message {
    pub(crate) from: String,
    pub(crate) to: String,
    /// When it has arrived, from the beginning.
    pub(crate) at_us: f64,
}

/// A picture with this title. What is said of hosts that have no column is left out.
pub(crate) fn draw(title: &str, hosts: &[&str], messages: &[Message]) -> Vec<String> {
    let column = |host: usize| host * APART + APART / 2;
    let place = |name: &str| hosts.iter().position(|host| *host == name).map(column);
    let mut names = vec![' '; hosts.len() * APART];
    for (host, name) in hosts.iter().enumerate() {
        let begin = column(host).saturating_sub(name.chars().count() / 2);
        names
            .iter_mut()
            .skip(begin)
            .zip(name.chars())
            .for_each(|(to, letter)| *to = letter);
    }
    let mut lines = vec![(String::new(), names)];
    for message in messages {
        let (Some(from), Some(to)) = (place(&message.from), place(&message.to)) else {
            continue;
        };
        let (left, right) = (from.min(to), from.max(to));
        let line = (0..hosts.len() * APART).map(|at| {
            let is_host = (0..hosts.len()).any(|host| column(host) == at);
            match at {
                _ if at == from => {
                    if from < to {
                        '├'
                    } else {
                        '┤'
                    }
                }
                _ if at == to => '│',
                _ if at + 1 == to && from < to => '▶',
                _ if at == to + 1 && to < from => '◀',
                _ if (left..right).contains(&at) => {
                    if is_host {
                        '┼'
                    } else {
                        '─'
                    }
                }
                _ if is_host => '│',
                _ => ' ',
            }
        });
        lines.push((show_micros(message.at_us), line.collect()));
    }
    let lines = lines.into_iter().map(|(time, line)| {
        let time = pad_str(&time, TIMES, Alignment::Right, None).into_owned();
        format!("{time}{}", String::from_iter(line))
    });
    std::iter::once(title.to_owned()).chain(lines).collect()
}

/// Two pictures beside each other.
pub(crate) fn beside(left: &[String], right: &[String]) -> String {
    let width = left
        .iter()
        .map(|line| line.chars().count())
        .max()
        .unwrap_or_default();
    let none = String::new();
    let lines = (0..left.len().max(right.len())).map(|number| {
        let [left, right] = [left, right].map(|lines| lines.get(number).unwrap_or(&none));
        let line = format!("{}  {right}", pad_str(left, width, Alignment::Left, None));
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(hosts: &[&str]) -> Vec<Message> {
        let message = |(number, pair): (u32, &[&str])| Message {
            from: pair[0].to_owned(),
            to: pair[1].to_owned(),
            at_us: f64::from(number) * 20_100.0,
        };
        (1..).zip(hosts.windows(2)).map(message).collect()
    }

    #[test]
    fn a_chain_stands_beside_calls() {
        let hosts = ["client", "archive", "quotes"];
        let chain = draw(
            "chain",
            &hosts,
            &messages(&["client", "archive", "quotes", "client"]),
        );
        let calls = ["client", "archive", "client", "quotes", "client"];
        let calls = draw("calls", &hosts, &messages(&calls));
        let expected = "\
chain                                    calls
           client    archive   quotes               client    archive   quotes
  20.1 ms     ├────────▶│         │        20.1 ms     ├────────▶│         │
  40.2 ms     │         ├────────▶│        40.2 ms     │◀────────┤         │
  60.3 ms     │◀────────┼─────────┤        60.3 ms     ├─────────┼────────▶│
                                           80.4 ms     │◀────────┼─────────┤
";
        assert_eq!(beside(&chain, &calls), expected);
    }
}
