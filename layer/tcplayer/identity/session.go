package identity

import (
	"crypto/tls"
	"sync/atomic"
)

// maxTicket is the maximum size of a session ticket. The ClientHello with the ticket must fit into
// the 8 KiB that tcplayer.DetectTLS and linkerd's proxy read.
const maxTicket = 4 << 10

// lastSession is a [tls.ClientSessionCache] of one session. The session is resumed only while the
// client has the certificate with which it began.
type lastSession struct {
	own  func() (*tls.Certificate, error) // returns the current certificate of the client
	last atomic.Pointer[session]
}

type session struct {
	state *tls.ClientSessionState
	cert  *tls.Certificate
}

// Get is part of [tls.ClientSessionCache].
func (l *lastSession) Get(string) (*tls.ClientSessionState, bool) {
	s := l.last.Load()
	if s == nil {
		return nil, false
	}
	cert, err := l.own()
	return s.state, err == nil && cert == s.cert
}

// Put is part of [tls.ClientSessionCache]. A nil state removes the session.
func (l *lastSession) Put(_ string, state *tls.ClientSessionState) {
	ticket, _, err := state.ResumptionState()
	cert, invalid := l.own()
	if err != nil || invalid != nil || len(ticket) == 0 || len(ticket) > maxTicket {
		l.last.Store(nil)
		return
	}
	l.last.Store(&session{state, cert})
}
