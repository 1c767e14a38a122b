//! Types of a service are fixed: callers are other programs.

#[wallaby::service]
trait Store<T>
where
    T: Clone,
{
    async fn get(key: String) -> T;
}

#[wallaby::service]
trait Cache {
    async fn get<K: Clone>(key: K) -> String;
    async fn put<'a>(key: String)
    where
        'a: 'static;
}

fn main() {}
