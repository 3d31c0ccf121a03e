package httplayer

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func frameBytes(kind byte, payload string) []byte {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))[1:]
	return append(append(head, kind, 0, 0, 0, 0, 0), payload...)
}

// follow scans what comes in pieces of n bytes, and reports what was known at
// the beginning of each Read.
func follow(data []byte, n int) (readyAt int, goAway bool, limit int64) {
	f := newFrames(func() {})
	readyAt = -1
	seen := func(at int) {
		f.processed()
		select {
		case <-f.ready:
			if readyAt < 0 {
				readyAt = at
			}
		default:
		}
	}
	for at := 0; at < len(data); at += n {
		seen(at)
		f.scan(data[at:min(at+n, len(data))])
	}
	seen(len(data))
	return readyAt, f.goAway.Load(), f.limit.Load()
}

func TestFramesFindSettings(t *testing.T) {
	settings := frameBytes(frameSettings, "\x00\x03\x00\x00\x00\x0a")
	data := append(bytes.Clone(settings), frameBytes(frameData, "some data")...)
	for n := 1; n <= len(data); n++ {
		readyAt, goAway, limit := follow(data, n)
		// Not before all of them came, and at the next Read after that.
		want := min((len(settings)+n-1)/n*n, len(data))
		assert.Equal(t, want, readyAt, "in pieces of %d", n)
		assert.False(t, goAway)
		assert.EqualValues(t, 10, limit)
	}
	readyAt, _, limit := follow(frameBytes(frameSettings, ""), 100)
	assert.Equal(t, 9, readyAt, "empty SETTINGS are SETTINGS")
	assert.EqualValues(t, unsaidStreams, limit)
	readyAt, _, limit = follow([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), 100)
	assert.Equal(t, -1, readyAt)
	assert.Zero(t, limit)
	_, _, limit = follow(frameBytes(frameSettings, "\x00\x03\xff\xff\xff\xff"), 100)
	assert.EqualValues(t, math.MaxInt32, limit)
}

func TestFramesFollowSettings(t *testing.T) {
	// Other settings mean nothing; the last word on streams counts.
	data := frameBytes(frameSettings, "\x00\x04\x00\x00\x00\x07\x00\x03\x00\x00\x00\x05\x00\x01\x00\x00\x00\x09")
	data = append(data, frameBytes(frameData, "\x00\x03\x00\x00\x00\x63")...)
	for n := 1; n <= len(data); n++ {
		_, _, limit := follow(data, n)
		assert.EqualValues(t, 5, limit)
	}
	data = append(data, frameBytes(frameSettings, "\x00\x03\x00\x00\x00\x06\x00\x03\x00\x00\x01\x00")...)
	data = append(data, frameBytes(frameSettings, "")...)
	for n := 1; n <= len(data); n++ {
		_, _, limit := follow(data, n)
		assert.EqualValues(t, 256, limit)
	}
}

func TestFramesFindGoAway(t *testing.T) {
	data := append(frameBytes(frameData, "\x00\x00\x00\x07 looks like one"), frameBytes(0x6, "12345678")...)
	for n := 1; n <= len(data); n++ {
		_, goAway, _ := follow(data, n)
		assert.False(t, goAway)
	}
	data = append(data, frameBytes(frameGoAway, "12345678")...)
	for n := 1; n <= len(data); n++ {
		_, goAway, _ := follow(data, n)
		assert.True(t, goAway)
	}
}

// FuzzFrames checks that it does not matter in what pieces bytes come, and
// that what is found is what a plain reader of frames finds.
func FuzzFrames(f *testing.F) {
	f.Add(append(frameBytes(frameSettings, "123456"), frameBytes(frameGoAway, "12345678")...), 3)
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), 1)
	f.Add(frameBytes(frameSettings, ""), 9)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		if n < 1 || n > 1<<16 {
			n = 7
		}
		settingsEnd, goAway, streams := -1, false, uint32(unsaidStreams)
		for at := 0; at+9 <= len(data); {
			head := data[at:]
			payload := head[9:]
			length := int(head[0])<<16 + int(head[1])<<8 + int(head[2])
			at += 9 + length
			goAway = goAway || head[3] == frameGoAway
			if head[3] != frameSettings {
				continue
			}
			for payload = payload[:min(length, len(payload))]; len(payload) >= 6; payload = payload[6:] {
				if at <= len(data) && payload[0] == 0 && payload[1] == settingMaxConcurrentStreams {
					streams = binary.BigEndian.Uint32(payload[2:])
				}
			}
			if settingsEnd < 0 && at <= len(data) {
				settingsEnd = at
			}
		}
		readyAt, gotGoAway, limit := follow(data, n)
		if gotGoAway != goAway {
			t.Fatalf("goAway is %v", gotGoAway)
		}
		want := -1
		if settingsEnd >= 0 {
			want = min((settingsEnd+n-1)/n*n, len(data))
			if limit != int64(min(streams, math.MaxInt32)) {
				t.Fatalf("the limit is %d, want %d", limit, streams)
			}
		}
		if readyAt != want {
			t.Fatalf("ready at %d, want %d", readyAt, want)
		}
	})
}
