//! Package, codec, a private trait, and what happens to attributes.

#[wallaby::service(package = "demo.blobs", codec = self::codec::Plain)]
#[cfg(feature = "blobs")]
trait BlobStore {
    #[cfg(unix)]
    #[deprecated]
    #[must_use]
    async fn put(data: super::Bytes) -> wallaby::One<Key>;
}

/// Seen in a part of the crate.
#[wallaby::service(package = "demo")]
#[deprecated]
pub(super) trait Near {}
