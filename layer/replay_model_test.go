package layer_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
)

// A schedule is a list of pairs: an operation, and a reader or a size.
// TestReplayModel draws schedules, and FuzzReplay takes them from its input.
func TestReplayModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		schedule := rapid.SliceOfN(rapid.Byte(), 0, 120).Draw(rt, "schedule")
		size, limit := rapid.IntRange(0, 60).Draw(rt, "size"), rapid.IntRange(-1, 80).Draw(rt, "limit")
		if problem := driveReplay(schedule, size, limit, rapid.Bool().Draw(rt, "breaks")); problem != "" {
			rt.Fatal(problem)
		}
	})
}

func FuzzReplay(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0x30, 0, 0, 1, 0x21, 3, 0, 1, 0x31, 2, 1, 4, 0}, uint8(20), int8(10), false)
	f.Add([]byte{0, 0, 0, 0, 1, 0xf0, 1, 0x41, 4, 0, 2, 0, 2, 1}, uint8(30), int8(12), true)
	f.Fuzz(func(t *testing.T, schedule []byte, size uint8, limit int8, breaks bool) {
		if problem := driveReplay(schedule, int(size), int(limit), breaks); problem != "" {
			t.Error(problem)
		}
	})
}

var errSourceBroke = errors.New("the source broke")

type replayModel struct {
	body    *layer.BodyReplay
	source  *replaySource
	data    []byte
	limit   int
	breaks  bool
	readers []*modelReader

	pos           int // how much of the source was read
	broke         bool
	whole         bool // the source has ended
	ended, closed bool
}

type modelReader struct {
	io.ReadCloser
	pos  int
	open bool // as the model sees it
}

func driveReplay(schedule []byte, size, limit int, breaks bool) string {
	m := &replayModel{limit: max(limit, 0), breaks: breaks}
	for i := range size {
		m.data = append(m.data, byte(i))
	}
	var data io.Reader = bytes.NewReader(m.data)
	if breaks {
		data = io.MultiReader(data, errReader{errSourceBroke})
	}
	m.source = &replaySource{data: data}
	m.body = layer.ReplayBody(m.source, nil, int64(limit))
	for i := 0; i+1 < len(schedule); i += 2 {
		if problem := m.step(schedule[i]%5, schedule[i+1]); problem != "" {
			return fmt.Sprintf("step %d: %s", i/2, problem)
		}
		if problem := m.closedRight(); problem != "" {
			return fmt.Sprintf("after step %d: %s", i/2, problem)
		}
	}
	return ""
}

func (m *replayModel) step(what, arg byte) string {
	switch what {
	case 0:
		return m.next()
	case 1, 2:
		return m.read(int(arg&0xf), int(arg>>4))
	case 3:
		if r := m.reader(int(arg)); r != nil {
			r.Close()
			r.open = false
		}
	case 4:
		m.body.End()
		m.ended = true
	}
	return ""
}

func (m *replayModel) reader(i int) *modelReader {
	if len(m.readers) == 0 {
		return nil
	}
	return m.readers[i%len(m.readers)]
}

func (m *replayModel) next() string {
	body, ok := m.body.Next()
	if may := !m.ended && !m.broke && m.pos <= m.limit; ok != may {
		return fmt.Sprintf("Next is %v after %d bytes of %d, ended %v, broken %v", ok, m.pos, m.limit, m.ended, m.broke)
	}
	if ok && !m.whole {
		for _, earlier := range m.readers {
			earlier.open = false
		}
	}
	if ok {
		m.readers = append(m.readers, &modelReader{ReadCloser: body, open: true})
	}
	return ""
}

func (m *replayModel) read(i, n int) string {
	r := m.reader(i)
	if r == nil || n == 0 {
		return ""
	}
	buf := make([]byte, n)
	before := m.source.reads.Load()
	got, err := r.Read(buf)
	fetched := m.source.reads.Load() > before
	switch {
	case !r.open:
		if err == nil || fetched {
			return fmt.Sprintf("a reader that was given up reads %d bytes", got)
		}
		return ""
	case fetched && r.pos != m.pos:
		return fmt.Sprintf("at %d, with %d bytes read before, the source is asked", r.pos, m.pos)
	case !bytes.Equal(buf[:got], m.data[r.pos:r.pos+got]):
		return fmt.Sprintf("at %d it reads %v", r.pos, buf[:got])
	}
	r.pos += got
	if fetched {
		m.pos = r.pos
	}
	return m.endsRight(r, err)
}

func (m *replayModel) endsRight(r *modelReader, err error) string {
	switch {
	case err == nil:
		return ""
	case r.pos < len(m.data):
		return fmt.Sprintf("at %d of %d it fails: %v", r.pos, len(m.data), err)
	case m.breaks:
		m.broke = true
		if err != errSourceBroke {
			return fmt.Sprintf("the source broke, it says %v", err)
		}
	case err != io.EOF:
		return fmt.Sprintf("at the end it fails: %v", err)
	default:
		m.whole = true
	}
	return ""
}

// closedRight compares how often the source was closed with the expected number.
func (m *replayModel) closedRight() string {
	over := m.ended && len(m.readers) > 0
	for _, r := range m.readers {
		over = over && !r.open
	}
	m.closed = m.closed || over
	want := int64(0)
	if m.closed {
		want = 1
	}
	if got := m.source.closes.Load(); got != want {
		return fmt.Sprintf("the source was closed %d times, want %d", got, want)
	}
	return ""
}
