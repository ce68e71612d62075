//! Options of DCCP (dccp(7), Documentation/networking/dccp.rst), which the kernel always carries.

use super::socket::Socket;
use crate::call;
use std::io;
use std::ops::Deref;

// From include/uapi/linux/dccp.h. The libc crate has them, but not the level for every target.
use libc::{
    DCCP_SOCKOPT_AVAILABLE_CCIDS, DCCP_SOCKOPT_CCID, DCCP_SOCKOPT_GET_CUR_MPS, DCCP_SOCKOPT_QPOLICY_TXQLEN,
    DCCP_SOCKOPT_RECV_CSCOV, DCCP_SOCKOPT_RX_CCID, DCCP_SOCKOPT_SEND_CSCOV, DCCP_SOCKOPT_SERVER_TIMEWAIT,
    DCCP_SOCKOPT_SERVICE, DCCP_SOCKOPT_TX_CCID, SOL_DCCP,
};

/// The congestion controls that the kernel supports; see [`Socket::dccp_available_ccids`].
#[derive(Debug)]
pub struct CcidEndpoints<const N: usize> {
    endpoints: [u8; N],
    length: usize,
}

impl<const N: usize> Deref for CcidEndpoints<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.endpoints[..self.length]
    }
}

impl Socket {
    fn dccp(&self, name: i32) -> io::Result<u32> {
        Ok(call::int_option(self.fd(), SOL_DCCP, name)? as u32)
    }

    fn set_dccp(&self, name: i32, value: u32) -> io::Result<()> {
        call::set_int_option(self.fd(), SOL_DCCP, name, value as i32)
    }

    /// DCCP_SOCKOPT_SERVICE.
    pub fn dccp_service(&self) -> io::Result<u32> {
        self.dccp(DCCP_SOCKOPT_SERVICE)
    }

    /// DCCP_SOCKOPT_SERVICE.
    pub fn set_dccp_service(&self, code: u32) -> io::Result<()> {
        self.set_dccp(DCCP_SOCKOPT_SERVICE, code)
    }

    /// DCCP_SOCKOPT_CCID: both directions.
    pub fn set_dccp_ccid(&self, ccid: u8) -> io::Result<()> {
        call::set_option(self.fd(), SOL_DCCP, DCCP_SOCKOPT_CCID, &[ccid])
    }

    /// DCCP_SOCKOPT_TX_CCID.
    pub fn dccp_tx_ccid(&self) -> io::Result<u32> {
        self.dccp(DCCP_SOCKOPT_TX_CCID)
    }

    /// DCCP_SOCKOPT_RX_CCID (under socket2's name).
    pub fn dccp_xx_ccid(&self) -> io::Result<u32> {
        self.dccp(DCCP_SOCKOPT_RX_CCID)
    }

    /// DCCP_SOCKOPT_SERVER_TIMEWAIT.
    pub fn dccp_server_timewait(&self) -> io::Result<bool> {
        Ok(self.dccp(DCCP_SOCKOPT_SERVER_TIMEWAIT)? != 0)
    }

    /// DCCP_SOCKOPT_SERVER_TIMEWAIT.
    pub fn set_dccp_server_timewait(&self, hold_timewait: bool) -> io::Result<()> {
        self.set_dccp(DCCP_SOCKOPT_SERVER_TIMEWAIT, hold_timewait.into())
    }

    /// DCCP_SOCKOPT_SEND_CSCOV.
    pub fn dccp_send_cscov(&self) -> io::Result<u32> {
        self.dccp(DCCP_SOCKOPT_SEND_CSCOV)
    }

    /// DCCP_SOCKOPT_SEND_CSCOV.
    pub fn set_dccp_send_cscov(&self, level: u32) -> io::Result<()> {
        self.set_dccp(DCCP_SOCKOPT_SEND_CSCOV, level)
    }

    /// DCCP_SOCKOPT_RECV_CSCOV.
    pub fn dccp_recv_cscov(&self) -> io::Result<u32> {
        self.dccp(DCCP_SOCKOPT_RECV_CSCOV)
    }

    /// DCCP_SOCKOPT_RECV_CSCOV.
    pub fn set_dccp_recv_cscov(&self, level: u32) -> io::Result<()> {
        self.set_dccp(DCCP_SOCKOPT_RECV_CSCOV, level)
    }

    /// DCCP_SOCKOPT_QPOLICY_TXQLEN.
    pub fn dccp_qpolicy_txqlen(&self) -> io::Result<u32> {
        self.dccp(DCCP_SOCKOPT_QPOLICY_TXQLEN)
    }

    /// DCCP_SOCKOPT_QPOLICY_TXQLEN.
    pub fn set_dccp_qpolicy_txqlen(&self, length: u32) -> io::Result<()> {
        self.set_dccp(DCCP_SOCKOPT_QPOLICY_TXQLEN, length)
    }

    /// DCCP_SOCKOPT_AVAILABLE_CCIDS, at most `N`.
    pub fn dccp_available_ccids<const N: usize>(&self) -> io::Result<CcidEndpoints<N>> {
        let mut endpoints = [0; N];
        let length = call::option(self.fd(), SOL_DCCP, DCCP_SOCKOPT_AVAILABLE_CCIDS, &mut endpoints)?;
        Ok(CcidEndpoints { endpoints, length: length.min(N) })
    }

    /// DCCP_SOCKOPT_GET_CUR_MPS in bytes.
    pub fn dccp_cur_mps(&self) -> io::Result<u32> {
        self.dccp(DCCP_SOCKOPT_GET_CUR_MPS)
    }
}
