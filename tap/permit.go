package tap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// ServerOption says who may watch.
type ServerOption interface{ applyServer(s *Server) }

type serverOption func(*Server)

func (f serverOption) applyServer(s *Server) { f(s) }

// WithAllowedIdentities lets clients of other machines watch that prove one of these
// names by a verified certificate: a DNS name or a URI among its subject
// alternative names, compared whole. The gRPC server must have been given
// credentials that ask for client certificates. A client that comes by TLS is
// then asked for its name even on this machine.
func WithAllowedIdentities(names ...string) ServerOption {
	return serverOption(func(s *Server) {
		for _, name := range names {
			if !strings.Contains(name, "://") { // case matters in a URI, not in a name
				name = strings.ToLower(name)
			}
			s.access.identities = append(s.access.identities, name)
		}
	})
}

// WithAllowRemote lets everybody watch who reaches the server. Requests hold what
// people would not want to be read by others: use it only where something else
// decides who may connect.
func WithAllowRemote() ServerOption {
	return serverOption(func(s *Server) { s.access.everybody = true })
}

// access decides who may watch.
type access struct {
	everybody  bool
	identities []string // URIs, and DNS names in lower case
}

// permit returns why the caller may not watch, or nil.
func (a *access) permit(ctx context.Context) error {
	if a.everybody {
		return nil
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return errors.New("it is not known who asks")
	}
	if tls, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(a.identities) > 0 {
		return a.permitIdentity(tls)
	}
	switch {
	case !isLocal(p):
		return fmt.Errorf("%v is not on this machine", p.Addr)
	case isForwarded(ctx):
		return errors.New("the call was forwarded, and it is not known for whom")
	}
	return nil
}

// isForwarded reports whether a proxy says that a call is not its own: it may be
// on this machine, and whoever it forwards for anywhere.
func isForwarded(ctx context.Context) bool {
	for _, name := range [...]string{"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"} {
		if len(metadata.ValueFromIncomingContext(ctx, name)) > 0 {
			return true
		}
	}
	return false
}

func (a *access) permitIdentity(tls credentials.TLSInfo) error {
	// Only what was verified counts; a server may ask for certificates
	// without checking them.
	if len(tls.State.VerifiedChains) == 0 || len(tls.State.VerifiedChains[0]) == 0 {
		return errors.New("the client has no verified certificate")
	}
	cert := tls.State.VerifiedChains[0][0]
	names := slices.Clone(cert.DNSNames)
	for i, name := range names {
		names[i] = strings.ToLower(name)
	}
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	for _, name := range names {
		if slices.Contains(a.identities, name) {
			return nil
		}
	}
	return fmt.Errorf("the client is %q, which may not watch", names)
}

// isLocal reports whether a caller is on this machine.
func isLocal(p *peer.Peer) bool {
	if p.Addr == nil {
		return false
	}
	if p.Addr.Network() == "unix" {
		return true
	}
	addr, err := netip.ParseAddrPort(p.Addr.String())
	return err == nil && addr.Addr().IsLoopback()
}

// seat is an exchange's place in the stream of one watcher.
type seat struct {
	*watcher
	stream uint64
	held   *held   // nil when events are sent as they happen
	bodies *bodies // nil when they were not asked for
}

// held is a request that is kept back until its outcome is known. What it takes
// in the meantime takes room in the buffer of the watcher.
type held struct {
	room  *buffer
	bytes int64
	lost  bool
}

func (s *seat) send(e Event) bool {
	e.ID = StreamID{Base: s.base, Stream: s.stream}
	return s.watcher.send(e)
}

// begin reports whether the request will be shown, or may be.
func (s *seat) begin(init Event) bool {
	if s.outcome != nil {
		return s.hold(init.weight())
	}
	var ok bool
	if s.stream, ok = s.enter(); !ok {
		return false
	}
	if !s.send(init) {
		s.leave()
		return false
	}
	return true
}

func (s *seat) hold(n int64) bool {
	b := s.buf.Load()
	if b == nil {
		return false
	}
	if !b.hold(n) {
		s.lose()
		return false
	}
	s.held = &held{room: b, bytes: n}
	return true
}

// respond sends e, or makes room for it.
func (s *seat) respond(e Event) {
	if s.held == nil {
		s.send(e)
		return
	}
	n := e.weight()
	if s.held.room.reserve(n) {
		s.held.bytes += n
		return
	}
	s.held.lost = true
	s.bodies.drop()
	s.lose()
}

// release ends what was held. It reports whether the request has a place in the
// stream after all.
func (s *seat) release(matches bool) bool {
	s.held.room.letGo(s.held.bytes)
	if s.held.lost || !matches || s.buf.Load() == nil {
		return false
	}
	var ok bool
	s.stream, ok = s.enter()
	return ok
}

// turns are how a reader sends to somebody for whom each sending has a price
// of its own, whatever is sent: a system call here, another and two goroutines
// that wake there. The zero turns are for a reader to whom that is nothing.
type turns struct {
	more   int               // events after the first that are sent in one turn
	gather time.Duration     // waited for them
	ask    func(n int) error // waits until n events may be sent; nil: at once
}

// Turns of a reader over gRPC.
const (
	// gatherFor is too short to be noticed, and longer than most requests
	// take: their three events are sent together.
	gatherFor = 5 * time.Millisecond

	// mostMore bounds the time that a turn takes from requests.
	mostMore = 15
)

func (t *turns) wait(n int) error {
	if t.ask == nil {
		return nil
	}
	return t.ask(n)
}

// gather waits for what follows an event, but not beyond the end of anything,
// nor until the buffer is full.
func (r *reader) gather(ctx context.Context, down, over <-chan struct{}) {
	if r.turns.gather == 0 || len(r.unread.events) >= r.turns.more {
		return
	}
	timer := time.NewTimer(r.turns.gather)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.unread.filling:
	case <-r.done:
	case <-over:
	case <-ctx.Done():
	case <-down:
	}
}

// pace bounds how many requests a second a watcher is shown: as many at once,
// and then one after the other, so that being watched comes in no gusts. It is
// the generic cell rate algorithm, with a second's tolerance, on a grid of its
// own: each watcher has its instants, so that many of the same rate do not all
// take the same request, which they would delay together, but for those at once.
type pace struct {
	every time.Duration // between two; 0 is no bound
	phase int64         // of the grid, less than every
	due   atomic.Int64  // when what was shown would have been, one after the other
}

// perSecond sets the bound, before the first use. Those with numbers that
// follow each other have phases that are far apart.
func (p *pace) perSecond(n, number uint32) {
	if n == 0 {
		return
	}
	const golden = 0x9e3779b9 // 2³² by the golden ratio
	p.every = max(time.Second/time.Duration(n), 1)
	p.phase = int64(float64(p.every) * float64(number*golden) / (1 << 32))
}

// spent is asked before a request is matched.
func (p *pace) spent(now int64) bool {
	return p.every > 0 && p.next(p.due.Load(), now) > now+int64(time.Second)
}

// take reports whether one more request may be shown.
func (p *pace) take() bool {
	if p.every == 0 {
		return true
	}
	for now := time.Now().UnixNano(); ; {
		due := p.due.Load()
		next := p.next(due, now)
		if next > now+int64(time.Second) {
			return false
		}
		if p.due.CompareAndSwap(due, next) {
			return true
		}
	}
}

// next is when one more would be due. A clock that was set back begins anew.
func (p *pace) next(due, now int64) int64 {
	if due < now || due > now+2*int64(time.Second) {
		due = now - (now-p.phase)%int64(p.every)
	}
	return due + int64(p.every)
}
