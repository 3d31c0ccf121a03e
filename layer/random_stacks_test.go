package layer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
)

// Random stacks have up to six layers. The service below is slow, fails, rejects and
// panics, and callers cancel. Rejected requests must be unchanged, every body closed, and
// all counts 0 at the end.
func TestRandomStacks(t *testing.T) {
	for seed := range uint64(1000) {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newRandomStack(t, seed).run() })
		}) {
			return
		}
	}
}

type (
	randomQ = *randomRequest
	randomR = *response
	randomS = layer.Stack[randomQ, randomR]
	randomV = layer.Service[randomQ, randomR]
	randomL = layer.Layer[randomQ, randomR]

	randomRequest struct {
		Method string
		Body   io.ReadCloser
		id     int
		dice   *randomDice // of this request only, so that its faults depend on the seed and not on the schedule
	}
)

// randomBody is a request body that records its reads and Close.
type randomBody struct {
	mu            sync.Mutex
	left          *strings.Reader
	reads, closes int
}

func (b *randomBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	if b.closes > 0 {
		return 0, errors.New("read after close")
	}
	return b.left.Read(p[:min(len(p), 7)])
}

func (b *randomBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closes++
	return nil
}

func (b *randomBody) seen() (reads, closes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reads, b.closes
}

// randomReply is a response body that arrives slowly and fails when its context ends.
type randomReply struct {
	ctx    context.Context
	left   int
	pause  time.Duration
	closes atomic.Int64
}

func (b *randomReply) Read(p []byte) (int, error) {
	select {
	case <-time.After(b.pause):
	case <-b.ctx.Done():
		return 0, context.Cause(b.ctx)
	}
	if b.left == 0 {
		return 0, io.EOF
	}
	b.left--
	return copy(p, "x"), nil
}

func (b *randomReply) Close() error { b.closes.Add(1); return nil }

// randomStack is one stack with the service below it.
type randomStack struct {
	*testing.T
	*randomDice // of the layers alone
	seed        uint64
	life        context.Context
	stack       randomS
	drain       *layer.Drainer
	budget      *layer.Budget // of all retries and hedges
	spans       atomic.Int64  // that are open

	mu      sync.Mutex
	replies []*randomReply
	served  map[int]int // by request
}

const randomText = "what is sent, in pieces"

func newRandomStack(t *testing.T, seed uint64) *randomStack {
	return &randomStack{
		T: t, randomDice: newRandomDice(seed, 1), seed: seed, drain: layer.NewDrainer(), served: make(map[int]int),
	}
}

// randomDice is a random source that several attempts of one request may use concurrently.
type randomDice struct {
	mu   sync.Mutex
	dice *rand.Rand
}

func newRandomDice(seed, stream uint64) *randomDice {
	return &randomDice{dice: rand.New(rand.NewPCG(seed, stream))}
}

func (d *randomDice) draw(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dice.IntN(n)
}

func (d *randomDice) ms(n int) time.Duration { return time.Duration(d.draw(n)) * time.Millisecond }

// serve is the service below all layers.
func (s *randomStack) serve(ctx context.Context, req randomQ) (randomR, error) {
	fate := req.dice.draw(100)
	if fate < 15 {
		return nil, layer.ErrNotReady
	}
	s.mu.Lock()
	s.served[req.id]++
	s.mu.Unlock()
	if req.Body != nil {
		defer req.Body.Close()
		if req.dice.draw(4) > 0 {
			if got, err := io.ReadAll(req.Body); err == nil {
				assert.Equal(s, randomText, string(got))
			}
		}
	}
	select {
	case <-time.After(req.dice.ms(100)):
	case <-ctx.Done():
		if req.dice.draw(3) > 0 {
			return nil, context.Cause(ctx)
		}
	}
	switch {
	case fate < 35:
		return nil, layer.ErrAttemptTimeout
	case fate < 45:
		return nil, io.ErrUnexpectedEOF
	case fate < 48:
		panic(errRandom)
	}
	return s.reply(ctx, req, req.dice.draw(4)), nil
}

var errRandom = errors.New("by chance")

func (s *randomStack) reply(ctx context.Context, req randomQ, size int) randomR {
	b := &randomReply{ctx: ctx, left: size, pause: req.dice.ms(30)}
	s.mu.Lock()
	s.replies = append(s.replies, b)
	s.mu.Unlock()
	return &response{Body: b}
}

func (s *randomStack) instead(ctx context.Context, req randomQ, _ layer.Outcome[randomR]) (randomR, error) {
	return s.reply(ctx, req, 0), nil
}

// grow adds random layers of the catalog.
func (s *randomStack) grow() {
	s.budget = layer.NewBudget(0, 1, 1000)
	layers := catalog()
	for range 1 + s.draw(6) {
		e := layers[s.draw(len(layers))]
		s.stack = s.stack.With(e.name, e.random(s))
	}
}

// randomEditor is the part of an Editor that Mirror uses.
type randomEditor struct {
	layer.Editor[randomQ, randomR]
}

func (randomEditor) TeeRequest(req randomQ, limit int64, whole func(randomQ, bool)) randomQ {
	copied := &randomRequest{Method: req.Method, id: req.id, dice: newRandomDice(uint64(req.id), 0)}
	if req.Body == nil {
		whole(copied, true)
		return req
	}
	other := *req
	other.Body = layer.TeeBody(req.Body, -1, limit, func(_ []byte, ok bool) { whole(copied, ok) })
	return &other
}

type randomSpan struct{ open *atomic.Int64 }

func (randomSpan) Head(randomR)             {}
func (r randomSpan) End(layer.Class, error) { r.open.Add(-1) }

func (s *randomStack) run() {
	life, end := context.WithCancel(s.Context())
	s.life = life
	defer end()
	s.grow()
	svc := s.stack.Service(layer.Func[randomQ, randomR](s.serve))
	shape := layer.Describe(svc).String()
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			dice := newRandomDice(s.seed, uint64(2+i))
			time.Sleep(dice.ms(200))
			ctx, cancel := context.WithCancel(life)
			defer cancel()
			if dice.draw(4) == 0 {
				defer time.AfterFunc(dice.ms(150), cancel).Stop()
			}
			s.call(ctx, svc, i, dice, shape)
		})
	}
	all.Wait()
	time.Sleep(20 * time.Second)
	synctest.Wait()
	for _, b := range s.replies {
		assert.NotZero(s, b.closes.Load(), "a response was left open\n%s", shape)
	}
	assert.Zero(s, s.spans.Load(), "a span was left open\n%s", shape)
	after := layer.Describe(svc).String()
	for attr := range strings.FieldsSeq(after) {
		if name, n, _ := strings.Cut(attr, "="); name == "in_flight" || name == "open" || name == "waiting" {
			assert.Equal(s, "0", n, "%s\n%s", name, after)
		}
	}
}

// call sends one request and checks its result.
func (s *randomStack) call(ctx context.Context, svc randomV, id int, dice *randomDice, shape string) {
	body := &randomBody{left: strings.NewReader(randomText)}
	req := &randomRequest{Method: []string{"GET", "PUT", "POST"}[dice.draw(3)], id: id, dice: dice}
	if dice.draw(3) > 0 {
		req.Body = body
	}
	defer func() {
		if p := recover(); p != nil {
			assert.Equal(s, errRandom, p, shape)
		}
	}()
	rsp, err := svc.Call(ctx, req)
	s.mu.Lock()
	served := s.served[id]
	s.mu.Unlock()
	reads, closes := body.seen()
	if errors.Is(err, layer.ErrNotReady) {
		assert.Zero(s, reads+closes+served, "it was rejected (%v), and yet touched\n%s", err, shape)
	}
	if err != nil {
		return
	}
	if dice.draw(4) > 0 {
		_, _ = io.ReadAll(rsp.Body)
	}
	_ = rsp.Body.Close()
	time.Sleep(time.Second)
	if _, closes = body.seen(); req.Body != nil {
		assert.NotZero(s, closes, "the body of the request was left open\n%s", shape)
	}
}
