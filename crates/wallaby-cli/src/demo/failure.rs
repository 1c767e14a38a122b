//! What went wrong, in sentences that name the server.

use super::services::{Excerpt, Hit};
use crate::time::show;
use std::collections::BTreeMap;
use wallaby::{Address, CallError, Failure};

/// What is wrong with a call.
pub(crate) fn of_call(error: &CallError) -> String {
    match (error.failure(), error.status()) {
        (Some(Failure::Deadline { after, .. }), _) => {
            format!("no complete answer within {}", show(*after))
        }
        (Some(Failure::NotSent { error, .. }), _) => error.to_string(),
        (_, Some(status)) => status.message().to_owned(),
        _ => error.to_string(),
    }
}

/// What is wrong with a call to one server, given by its name and address.
pub(crate) fn at(error: &CallError, name: &str, address: &Address) -> String {
    let sentence = of_call(error);
    if sentence.contains(&address.to_string()) {
        sentence
    } else {
        format!("{name}: {sentence}")
    }
}

/// The servers that were to answer and have not, and how many answers each owes.
pub(crate) fn silent<'a>(hits: &'a [Hit], found: &[Excerpt]) -> BTreeMap<&'a Address, usize> {
    let mut silent = BTreeMap::new();
    for hit in hits {
        if !found
            .iter()
            .any(|excerpt| (&excerpt.server, excerpt.document) == (&hit.server, hit.document))
        {
            *silent.entry(&hit.server).or_default() += 1;
        }
    }
    silent
}

/// Each sentence once, with how many times it was said.
pub(crate) fn once(sentences: Vec<String>) -> Vec<String> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for sentence in sentences {
        match counts.iter_mut().find(|(known, _)| *known == sentence) {
            Some((_, count)) => *count += 1,
            None => counts.push((sentence, 1)),
        }
    }
    let write = |(sentence, count)| {
        if count == 1 {
            sentence
        } else {
            format!("{sentence} ({count} times)")
        }
    };
    counts.into_iter().map(write).collect()
}

#[cfg(test)]
mod tests {
    use super::super::snippet::Snippet;
    use super::*;

    #[test]
    fn silent_servers_are_counted() {
        let server = |port: u16| -> Address { format!("tcp://127.0.0.1:{port}").parse().unwrap() };
        let hit = |port, document| Hit {
            server: server(port),
            document,
            count: 1,
        };
        let hits = [hit(1, 0), hit(1, 1), hit(2, 0), hit(3, 0)];
        let excerpt = |hit: &Hit| Excerpt {
            server: hit.server.clone(),
            document: hit.document,
            rank: 0,
            path: String::new(),
            title: String::new(),
            count: 1,
            snippet: Snippet::default(),
        };
        let (one, three) = (server(1), server(3));
        let silent = silent(&hits, &[excerpt(&hits[1]), excerpt(&hits[2])]);
        assert_eq!(
            silent.into_iter().collect::<Vec<_>>(),
            [(&one, 1), (&three, 1)]
        );
    }

    #[test]
    fn nobody_wants_to_read_the_same_twice() {
        let sentences = ["gone", "late", "gone"].map(str::to_owned).to_vec();
        assert_eq!(once(sentences), ["gone (2 times)", "late"]);
    }
}
