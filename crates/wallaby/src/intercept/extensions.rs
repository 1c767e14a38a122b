//! Typed values of a request, which interceptors put there for each other and for its handler.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Values of a request, at most one of each type: see [`RequestInfo::extensions`](crate::RequestInfo::extensions). They stay at
/// this server.
#[derive(Default)]
pub struct Extensions(Mutex<Vec<(TypeId, Arc<dyn Any + Send + Sync>)>>);

impl Extensions {
    /// Puts a value there, in place of the one of the same type.
    pub fn insert<T: Send + Sync + 'static>(&self, value: T) {
        let (id, value) = (TypeId::of::<T>(), Arc::new(value));
        let mut values = self.lock();
        let known = values.iter_mut().find(|(known, _)| *known == id);
        let before = match known {
            Some((_, known)) => Some(std::mem::replace(known, value)),
            None => {
                values.push((id, value));
                None
            }
        };
        drop(values);
        drop(before);
    }

    /// The value of this type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let id = TypeId::of::<T>();
        let values = self.lock();
        let value = values.iter().find(|(known, _)| *known == id)?;
        Arc::clone(&value.1).downcast().ok()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(TypeId, Arc<dyn Any + Send + Sync>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extensions({})", self.lock().len())
    }
}
