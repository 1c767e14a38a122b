//! The names in a certificate.

use std::net::IpAddr;

use wallaby::transport::Name;

const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const OCTETS: u8 = 0x04;
/// `[3]` of a certificate's body.
const EXTENSIONS: u8 = 0xa3;
/// Alternatives of a GeneralName (RFC 5280, 4.2.1.6).
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const IP: u8 = 0x87;
/// 2.5.29.17
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// The DNS names, URIs and IP addresses among the alternative names of a certificate that was verified. The common name of its
/// subject is none: anything can be written there.
pub(crate) fn of(certificate: &[u8]) -> Vec<Name> {
    alternative_names(certificate).unwrap_or_default()
}

fn alternative_names(certificate: &[u8]) -> Option<Vec<Name>> {
    let mut certificate = Der(Der(certificate).take(SEQUENCE)?);
    let mut body = Der(certificate.take(SEQUENCE)?);
    let mut extensions = Der(Der(body.find(EXTENSIONS)?).take(SEQUENCE)?);
    while let Some((SEQUENCE, extension)) = extensions.next() {
        let mut extension = Der(extension);
        if extension.take(OBJECT_ID)? == SUBJECT_ALT_NAME {
            let mut names = Der(Der(extension.find(OCTETS)?).take(SEQUENCE)?);
            return Some(
                std::iter::from_fn(|| names.next())
                    .filter_map(name)
                    .collect(),
            );
        }
    }
    None
}

fn name((tag, bytes): (u8, &[u8])) -> Option<Name> {
    let text = || {
        std::str::from_utf8(bytes)
            .ok()
            .filter(|text| text.is_ascii())
    };
    match tag {
        DNS => Some(Name::Dns(text()?.to_ascii_lowercase())),
        URI => Some(Name::Uri(text()?.to_owned())),
        IP => <[u8; 4]>::try_from(bytes)
            .map(IpAddr::from)
            .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
            .ok()
            .map(Name::Ip),
        _ => None,
    }
}

/// Values of DER, one after the other.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The next value: its tag and what is in it. `None` at the end, and if it is longer than what is there.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (len, rest) = match first {
            ..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (len, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
                (
                    len.iter()
                        .fold(0, |len, byte| len << 8 | usize::from(*byte)),
                    rest,
                )
            }
            0x80 | 0x85.. => return None,
        };
        let (value, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, value))
    }

    /// The next value, which has this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next()
            .filter(|(found, _)| *found == tag)
            .map(|(_, value)| value)
    }

    /// The first of the next values that has this tag.
    fn find(&mut self, tag: u8) -> Option<&'a [u8]> {
        std::iter::from_fn(|| self.next())
            .find_map(|(found, value)| (found == tag).then_some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_kinds_are_found() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec![
            "A.example".into(),
            "10.0.0.1".into(),
            "::1".into(),
        ])
        .expect("names");
        let uri = "spiffe://example/a".try_into().expect("a text");
        params.subject_alt_names.push(rcgen::SanType::URI(uri));
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "root");
        let certificate = params.self_signed(&key).expect("a certificate");
        let ip = |text: &str| Name::Ip(text.parse().expect("an address"));
        let expected = [
            Name::Dns("a.example".into()),
            ip("10.0.0.1"),
            ip("::1"),
            Name::Uri("spiffe://example/a".into()),
        ];
        assert_eq!(of(certificate.der()), expected);
        // However it is cut or changed, it is no panic.
        let der = certificate.der().to_vec();
        for end in 0..der.len() {
            of(&der[..end]);
            let mut changed = der.clone();
            changed[end] ^= 0xff;
            of(&changed);
        }
    }
}
