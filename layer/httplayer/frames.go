package httplayer

import (
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
)

// frames follows the frames that an HTTP/2 server sends, to learn what
// net/http does not tell: that the server's SETTINGS are in force, how many
// streams they allow, and that it is going away. scan and processed are called
// by the connection's reader alone.
type frames struct {
	head  [9]byte // of the frame that begins
	entry [6]byte // of SETTINGS: an identifier and its value
	have  int     // bytes of head or entry that came
	rest  int     // bytes of the payload that are still to come
	kind  byte

	begun    bool   // the head of a frame came
	settings int    // SETTINGS that came
	applied  int    // and were applied
	streams  uint32 // as they say

	changed func() // called when limit or goAway has
	limit   atomic.Int64
	pieces  atomic.Int64 // that came
	goAway  atomic.Bool
	foreign atomic.Bool   // what came first is no frame that a server begins with
	ready   chan struct{} // closed when net/http has applied the first SETTINGS
	ended   chan struct{} // closed when nothing more will come
	once    sync.Once
}

// Of RFC 9113, section 6.
const (
	frameSettings               = 0x4
	frameGoAway                 = 0x7
	settingMaxConcurrentStreams = 0x3
)

// Of a server that does not say, net/http takes it to allow this many.
const unsaidStreams = 1000

func newFrames(changed func()) *frames {
	return &frames{streams: unsaidStreams, changed: changed, ready: make(chan struct{}), ended: make(chan struct{})}
}

// scan looks at the next bytes. Payloads other than SETTINGS are skipped.
func (f *frames) scan(p []byte) {
	f.pieces.Add(1)
	for len(p) > 0 {
		switch {
		case f.rest == 0:
			p = f.beginning(p)
		case f.kind == frameSettings:
			p = f.setting(p)
		default:
			n := min(f.rest, len(p))
			f.rest -= n
			p = p[n:]
		}
	}
}

func (f *frames) beginning(p []byte) []byte {
	n := copy(f.head[f.have:], p)
	if f.have += n; f.have == len(f.head) {
		f.have = 0
		f.rest = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
		f.kind = f.head[3]
		if !f.begun {
			f.begun = true
			f.foreign.Store(f.kind != frameSettings && f.kind != frameGoAway)
		}
		switch {
		case f.kind == frameGoAway:
			f.goAway.Store(true)
			f.changed()
		case f.kind == frameSettings && f.rest == 0:
			f.settings++
		}
	}
	return p[n:]
}

func (f *frames) setting(p []byte) []byte {
	n := copy(f.entry[f.have:], p[:min(f.rest, len(p))])
	f.rest -= n
	if f.have += n; f.have == len(f.entry) {
		f.have = 0
		if binary.BigEndian.Uint16(f.entry[:]) == settingMaxConcurrentStreams {
			f.streams = binary.BigEndian.Uint32(f.entry[2:])
		}
	}
	if f.rest == 0 {
		f.have = 0 // net/http ends the connection if something was left
		f.settings++
	}
	return p[n:]
}

// processed is called before each Read. net/http reads frame by frame, in one
// goroutine, and asks for more only when it has dealt with what it has: so
// SETTINGS that came by an earlier Read are in force now.
func (f *frames) processed() {
	if f.settings == f.applied {
		return
	}
	first := f.applied == 0
	f.applied = f.settings
	f.limit.Store(int64(min(f.streams, math.MaxInt32)))
	if first {
		close(f.ready)
	}
	f.changed()
}

func (f *frames) end() { f.once.Do(func() { close(f.ended) }) }
