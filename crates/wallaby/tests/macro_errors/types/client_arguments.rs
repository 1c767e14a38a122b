//! A client's methods take the arguments of the service.

#[wallaby::service]
trait Index {
    async fn lookup(word: String) -> u64;
}

fn search(client: &index::Client) {
    let _call = client.lookup(1);
    let _target = index::lookup("hop".to_owned(), 2);
}

fn main() {}
