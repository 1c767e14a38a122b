//! Parts that few values have.

/// A cold part: few values have it. It costs the others a word, and a test when they are dropped: `Option<Box<T>>` would cost
/// them a call.
#[derive(Debug, Clone)]
pub(crate) struct Cold<T>(Option<Box<T>>);

impl<T> Cold<T> {
    /// It is not there.
    pub(crate) const NONE: Self = Self(None);

    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }
}

impl<T: Default> Cold<T> {
    pub(crate) fn get_or_insert_default(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T> Default for Cold<T> {
    fn default() -> Self {
        Self::NONE
    }
}

impl<T> Drop for Cold<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(part) = self.0.take() {
            drop_part(part);
        }
    }
}

#[cold]
#[inline(never)]
fn drop_part<T>(part: Box<T>) {
    drop(part);
}
