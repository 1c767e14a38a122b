//! OpenMetrics text, as who scrapes it reads it.

use std::collections::{BTreeMap, BTreeSet};

/// A metric as it is described.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) unit: Option<String>,
    pub(crate) about: String,
}

/// What was scraped.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    pub(crate) families: BTreeMap<String, Family>,
    /// Values by name and labels, as they are written.
    pub(crate) samples: BTreeMap<String, f64>,
}

impl Exposition {
    /// Panics if a line is not what the format says.
    pub(crate) fn parse(text: &str) -> Self {
        let mut all = Self::default();
        let (body, end) = text.split_at(text.len() - "# EOF\n".len());
        assert_eq!(end, "# EOF\n", "it is cut off");
        for line in body.lines() {
            if let Some(described) = line.strip_prefix("# ") {
                let mut parts = described.splitn(3, ' ');
                let (what, name, rest) = (parts.next(), parts.next(), parts.next());
                let (Some(what), Some(name), Some(rest)) = (what, name, rest) else {
                    panic!("{line:?} describes nothing");
                };
                let family = all.families.entry(name.into()).or_default();
                match what {
                    "HELP" => family.about = rest.into(),
                    "TYPE" => family.kind = rest.into(),
                    "UNIT" => family.unit = Some(rest.into()),
                    _ => panic!("{line:?}"),
                }
                continue;
            }
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            let value = value
                .parse()
                .unwrap_or_else(|error| panic!("{line:?}: {error}"));
            let before = all.samples.insert(name.into(), value);
            assert_eq!(before, None, "{name} is there twice");
            let family = all.family_of(name);
            assert!(
                all.families.contains_key(&family),
                "{line:?} is not described"
            );
        }
        all
    }

    /// The family of a sample.
    pub(crate) fn family_of(&self, sample: &str) -> String {
        let name = sample.split('{').next().unwrap_or(sample);
        let endings = ["", "_total", "_bucket", "_sum", "_count"];
        let mut stems = endings
            .iter()
            .filter_map(|ending| name.strip_suffix(ending));
        let known = stems.rfind(|stem| self.families.contains_key(*stem));
        known
            .unwrap_or_else(|| panic!("{sample} is of no metric"))
            .into()
    }

    pub(crate) fn value(&self, sample: &str) -> f64 {
        let value = self.samples.get(sample);
        *value.unwrap_or_else(|| panic!("no {sample} in {:#?}", self.samples))
    }

    /// The values of a label.
    pub(crate) fn labels(&self, family: &str, label: &str) -> BTreeSet<String> {
        let samples = self.samples.keys();
        let of = samples.filter(|sample| self.family_of(sample) == family);
        let start = format!("{label}=\"");
        of.filter_map(|sample| {
            let (_, rest) = sample.split_once(&start)?;
            Some(rest.split('"').next().unwrap_or(rest).to_owned())
        })
        .collect()
    }
}
