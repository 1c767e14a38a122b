//! The ad server: what fits a mail, by the words that both have.

use crate::letter::Letter;
use crate::services::{Ad, Ads, Message, Reading};
use serde::Deserialize;
use std::collections::BTreeSet;

/// Advertisements that a mail gets at most.
const MOST: usize = 2;
/// Bytes of a text whose words count.
const MOST_LOOKED_AT: usize = 16 << 10;

/// The server.
#[derive(Debug)]
pub(crate) struct AdServer(Vec<Offer>);

/// An advertisement, and the words that it fits.
#[derive(Debug, Deserialize)]
struct Offer {
    title: String,
    text: String,
    words: BTreeSet<String>,
}

impl AdServer {
    /// A server of our advertisements.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self(serde_json::from_str(include_str!("ads.json"))?))
    }
}

#[wallaby::serve]
impl Ads for AdServer {
    // A thread of its own: a mail may be long.
    fn append(&self, message: Message) -> Reading {
        let letter = Letter::read(&message.bytes);
        let mut text = letter.text;
        text.truncate(text.floor_char_boundary(MOST_LOOKED_AT));
        let text = format!("{} {text}", letter.subject).to_lowercase();
        let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
        let fit = |offer: &Offer| {
            let words = offer.words.iter().filter(|word| words.contains(&***word));
            words.count()
        };
        let mut offers: Vec<(usize, &Offer)> =
            self.0.iter().map(|offer| (fit(offer), offer)).collect();
        // Of those that fit equally well the first ones.
        offers.sort_by_key(|(fits, _)| std::cmp::Reverse(*fits));
        let fitting = offers.into_iter().filter(|(fits, _)| *fits > 0).take(MOST);
        let ads = fitting.map(|(_, offer)| Ad {
            title: offer.title.clone(),
            text: offer.text.clone(),
        });
        Reading {
            ads: ads.collect(),
            message,
        }
    }
}
