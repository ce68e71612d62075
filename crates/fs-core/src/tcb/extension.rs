//! What a control block points to: an IPv6 connection's addresses, which are small and always there, and the [`Ext`],
//! which is large and which most connections never need. One pointer for both keeps the control block at two lines.

use super::{Addresses, Ext};
use alloc::boxed::Box;

/// The pointer of a control block. Its methods speak of the [`Ext`], as `Option<Box<Ext>>` would.
#[derive(Debug, Default)]
pub(crate) struct Extension(Option<Box<Parts>>);

#[derive(Debug, Default)]
struct Parts {
    addresses: Addresses,
    rare: Option<Box<Ext>>,
}

impl Extension {
    /// Of a connection without anything rare; `addresses` if it is IPv6.
    pub(crate) fn new(addresses: Option<Addresses>) -> Self {
        Self(addresses.map(|addresses| Box::new(Parts { addresses, rare: None })))
    }

    /// Zeros for IPv4.
    #[inline]
    pub(crate) fn addresses(&self) -> Addresses {
        self.0.as_ref().map_or_else(Addresses::default, |parts| parts.addresses)
    }

    /// RFC 6437's label; zero for IPv4.
    #[inline]
    pub(crate) fn flow_label(&self) -> u32 {
        self.0.as_ref().map_or(0, |parts| parts.addresses.flow_label)
    }

    #[inline]
    pub(crate) fn as_ref(&self) -> Option<&Ext> {
        self.0.as_ref()?.rare.as_deref()
    }

    #[inline]
    pub(crate) fn as_mut(&mut self) -> Option<&mut Ext> {
        self.0.as_mut()?.rare.as_deref_mut()
    }

    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.as_ref().is_some()
    }

    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.as_ref().is_none()
    }

    /// The extension, made now if there is none.
    #[inline]
    pub(crate) fn get_or_make(&mut self) -> &mut Ext {
        self.0.get_or_insert_default().rare.get_or_insert_default()
    }

    /// Takes the extension out; addresses stay.
    pub(crate) fn take(&mut self) -> Option<Box<Ext>> {
        self.0.as_mut()?.rare.take()
    }
}
