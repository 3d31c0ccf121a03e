package identity

import (
	"crypto/tls"
	"sync/atomic"
)

// maxTicket is the maximum size of a session ticket. The ClientHello with the ticket must fit into
// the 8 KiB that tcplayer.DetectTLS and linkerd's proxy read.
const maxTicket = 4 << 10

// lastSession is a [tls.ClientSessionCache] for a single session, which is resumed only while the
// client keeps the certificate with which it began.
type lastSession struct {
	local func() (*tls.Certificate, error) // returns the current certificate of the client
	last  atomic.Pointer[session]
}

// session is a session and the certificate with which the client began it.
type session struct {
	state *tls.ClientSessionState
	cert  *tls.Certificate
}

// Get returns the session, unless the client has another certificate now. It implements
// [tls.ClientSessionCache].
func (l *lastSession) Get(string) (*tls.ClientSessionState, bool) {
	s := l.last.Load()
	if s == nil {
		return nil, false
	}
	cert, err := l.local()
	// A session with an old certificate would let the server see an old identity.
	return s.state, err == nil && cert == s.cert
}

// Put keeps the session for the next connection, together with the client's current certificate, which
// Get compares. It implements [tls.ClientSessionCache]. It removes the last session instead if
// state is nil, by which package tls removes a session that must not be resumed again, if the ticket is
// missing or longer than maxTicket, or if the client has no valid certificate now.
func (l *lastSession) Put(_ string, state *tls.ClientSessionState) {
	// ResumptionState also accepts a nil state.
	ticket, _, err := state.ResumptionState()
	cert, invalid := l.local()
	if err != nil || invalid != nil || len(ticket) == 0 || len(ticket) > maxTicket {
		l.last.Store(nil)
		return
	}
	l.last.Store(&session{state, cert})
}
