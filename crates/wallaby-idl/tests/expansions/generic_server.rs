//! A generic server, with attributes and with a type `Request` of the user's own.

#[wallaby::serve]
#[cfg(feature = "index")]
impl<T: Store, const N: usize> Index for Shard<T, N>
where
    T: Clone,
{
    #[cfg(unix)]
    #[allow(unused_variables)]
    #[tracing::instrument(skip(self))]
    async fn send(&self, request: Request) -> Vec<T::Item> {
        self.store.items(N)
    }

    async fn six(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8) {}
}
