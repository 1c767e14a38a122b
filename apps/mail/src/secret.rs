//! What nobody else may know: passwords, and what sessions are known by.

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::ConstantTimeEq;

/// The longest password, in bytes: longer ones would only cost time.
pub(crate) const LONGEST_PASSWORD: usize = 256;
/// The shortest password that a user may have.
pub(crate) const SHORTEST_PASSWORD: usize = 10;

/// A text that logs do not show.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(pub(crate) String);

/// What a session is known by: 256 random bits, as 43 letters.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Token(String);

/// What a token is known by where it is checked: who reads it there cannot use it.
pub(crate) type Print = [u8; 32];

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| anyhow::anyhow!("no random numbers from the system: {error}"))?;
    Ok(bytes)
}

/// Random letters: so many bytes, 6 bits of chance a letter.
pub(crate) fn random_text<const N: usize>() -> anyhow::Result<String> {
    Ok(BASE64_URL_SAFE_NO_PAD.encode(random::<N>()?))
}

impl Token {
    /// A new one.
    pub(crate) fn draw() -> anyhow::Result<Self> {
        Ok(Self(random_text::<32>()?))
    }

    /// The one of a cookie, if it looks like one.
    pub(crate) fn read(cookie: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(cookie).ok()?;
        (bytes.len() == 32).then(|| Self(cookie.to_owned()))
    }

    /// As a cookie has it.
    pub(crate) fn cookie(&self) -> &str {
        &self.0
    }

    /// What it is known by.
    pub(crate) fn print(&self) -> Print {
        self.hash(b"session")
    }

    /// What the forms of its pages have in them, which no other site can know, and which tells nothing of the token.
    pub(crate) fn form(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.hash(b"form"))
    }

    /// Whether that is what the forms of its pages have in them.
    pub(crate) fn fits(&self, form: &str) -> bool {
        self.form().as_bytes().ct_eq(form.as_bytes()).into()
    }

    fn hash(&self, what: &[u8]) -> [u8; 32] {
        let hasher = Sha256::new().chain_update(what);
        hasher.chain_update(self.0.as_bytes()).finalize().into()
    }
}

/// Hashes passwords by Argon2id, and checks them.
#[derive(Debug)]
pub(crate) struct Passwords {
    argon: Argon2<'static>,
    /// The hash of what nobody's password is: so a user whom nobody knows takes as long as others.
    decoy: String,
}

impl Passwords {
    /// As OWASP recommends it: 19 MiB of memory, twice.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Self::with(Params::DEFAULT)
    }

    fn with(params: Params) -> anyhow::Result<Self> {
        let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let decoy = String::new();
        let mut passwords = Self { argon, decoy };
        passwords.decoy = passwords.hash(&random_text::<32>()?)?;
        Ok(passwords)
    }

    /// What is kept of a password: in the PHC format, salt and parameters with it.
    pub(crate) fn hash(&self, password: &str) -> anyhow::Result<String> {
        anyhow::ensure!(
            password.len() <= LONGEST_PASSWORD,
            "a password has at most {LONGEST_PASSWORD} bytes"
        );
        let wrong = |error: argon2::password_hash::Error| {
            anyhow::anyhow!("the password can't be hashed: {error}")
        };
        let salt = SaltString::encode_b64(&random::<16>()?).map_err(wrong)?;
        let hash = self.argon.hash_password(password.as_bytes(), &salt);
        Ok(hash.map_err(wrong)?.to_string())
    }

    /// Whether it is the password of this hash. Without a hash it is not, and takes as long.
    pub(crate) fn is_right(&self, password: &str, hash: Option<&str>) -> bool {
        let password = &password.as_bytes()[..password.len().min(LONGEST_PASSWORD + 1)];
        let parsed = PasswordHash::new(hash.unwrap_or(&self.decoy));
        let is_right =
            parsed.is_ok_and(|parsed| self.argon.verify_password(password, &parsed).is_ok());
        is_right && hash.is_some()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hashed_with_salt_and_checked() {
        let small = Params::new(64, 1, 1, None).unwrap();
        let passwords = Passwords::with(small).unwrap();
        let hash = passwords.hash("correct horse").unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=64,t=1,p=1$"), "{hash}");
        assert_ne!(hash, passwords.hash("correct horse").unwrap());
        assert!(passwords.is_right("correct horse", Some(&hash)));
        assert!(!passwords.is_right("correct hors", Some(&hash)));
        assert!(!passwords.is_right("correct horse", Some("nonsense")));
        assert!(!passwords.is_right("", None));
        let long = "x".repeat(LONGEST_PASSWORD + 1);
        assert!(passwords.hash(&long).is_err());
        assert!(!passwords.is_right(&long, Some(&hash)));
    }

    #[test]
    fn tokens_are_random_and_logs_do_not_show_them() {
        let (one, other) = (Token::draw().unwrap(), Token::draw().unwrap());
        assert_ne!(one, other);
        assert_eq!(Token::read(one.cookie()), Some(one.clone()));
        assert_eq!(Token::read("short"), None);
        assert!(one.fits(&one.form()) && !one.fits(&other.form()) && !one.fits(""));
        assert_eq!(format!("{one:?}"), "Token(..)");
        assert_eq!(format!("{:?}", Secret("password".into())), "Secret(..)");
    }
}
