package httplayer

import (
	"sync/atomic"
	"time"
)

// silence is that of an HTTP/2 server after a stream was reset. One that says
// nothing for long is not there any more, though it may take a quarter of an hour
// until TCP says so. Without this its connection would get requests, or be full of
// streams that were reset, and refuse them, for as long. net/http asks for a sign of
// life then (PING), but not again before there was another response; so a server
// that serves nothing, and is there, may cost a connection that is not needed.
//
// It is looked at by requests alone, so it counts from the first that looks.
type silence struct {
	made   time.Time    // the connection
	pieces atomic.Int64 // one more than had come when a stream was reset; 0: none was
	since  atomic.Int64 // when somebody looked first after that, in ns since made; 0 before
}

// begin says that a stream was reset, when so many pieces had come.
func (s *silence) begin(pieces int64) {
	if s.pieces.Load() != pieces+1 {
		s.since.Store(0)
		s.pieces.Store(pieces + 1)
	}
}

// lasts reports whether nothing came for too long, given how many pieces did.
func (s *silence) lasts(pieces int64) bool {
	if s.pieces.Load() != pieces+1 {
		return false
	}
	now := max(int64(time.Since(s.made)), 1)
	return !s.since.CompareAndSwap(0, now) && time.Duration(now-s.since.Load()) >= patienceWithSilence
}
