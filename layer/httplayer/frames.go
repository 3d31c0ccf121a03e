package httplayer

import (
	"sync"
	"sync/atomic"
)

// frames follows the frames that an HTTP/2 server sends, to learn what
// net/http does not tell: when the server's SETTINGS are in force, and that it
// is going away. scan and processed are called by the connection's reader
// alone.
type frames struct {
	head     [9]byte // of the frame that begins
	have     int     // bytes of head that came
	rest     int     // bytes of the payload that are still to come
	kind     byte
	settings bool // the first SETTINGS have come
	told     bool

	goAway atomic.Bool
	ready  chan struct{} // closed when net/http has applied the first SETTINGS
	ended  chan struct{} // closed when nothing more will come
	once   sync.Once
}

// Frame types of RFC 9113, section 6.
const (
	frameSettings = 0x4
	frameGoAway   = 0x7
)

func newFrames() *frames {
	return &frames{ready: make(chan struct{}), ended: make(chan struct{})}
}

// scan looks at the next bytes. The payload of a frame is skipped.
func (f *frames) scan(p []byte) {
	for len(p) > 0 {
		if f.rest > 0 {
			n := min(f.rest, len(p))
			f.rest -= n
			p = p[n:]
			f.complete()
			continue
		}
		n := copy(f.head[f.have:], p)
		f.have += n
		p = p[n:]
		if f.have == len(f.head) {
			f.have = 0
			f.rest = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
			f.kind = f.head[3]
			if f.kind == frameGoAway {
				f.goAway.Store(true)
			}
			f.complete()
		}
	}
}

func (f *frames) complete() {
	if f.rest == 0 && f.kind == frameSettings {
		f.settings = true
	}
}

// processed is called before each Read. net/http reads frame by frame, in one
// goroutine, and asks for more only when it has dealt with what it has: so
// SETTINGS that came by an earlier Read are in force now.
func (f *frames) processed() {
	if f.settings && !f.told {
		f.told = true
		close(f.ready)
	}
}

func (f *frames) end() { f.once.Do(func() { close(f.ended) }) }
