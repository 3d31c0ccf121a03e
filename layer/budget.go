package layer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"
)

// Budget limits the load that retries and hedges add, by the rule of finagle
// and linkerd: each request deposits a share of a retry, and some retries per
// second are always allowed. Layers and stacks may share a Budget. Its methods
// are safe for concurrent use.
//
// At every granted withdrawal, the withdrawals of the last ttl, itself
// included, are at most
//
//	ratio × deposits of the same ttl + perSecond × ttl
//
// so a deposit that is unused within ttl is lost. Rounding (buckets of ttl/64,
// deposits dated in groups of eight) is towards fewer withdrawals.
type Budget struct {
	ttl     time.Duration
	ratio   float64
	reserve float64
	made    time.Time

	deposits atomic.Uint64 // since the start

	mu        sync.Mutex
	dated     uint64        // deposits that are in a bucket
	looked    time.Duration // time since made; the undated deposits are younger
	epoch     int64         // the bucket of the last look
	buckets   [budgetBuckets + 1]budgetBucket
	paidIn    uint64 // sum of the last budgetBuckets buckets: at most ttl
	withdrawn uint64 // sum of one bucket more: at least ttl
}

const (
	budgetBuckets = 64
	// budgetGroup is the number of deposits per clock reading.
	budgetGroup = 8
)

type budgetBucket struct{ paidIn, withdrawn uint64 }

// NewBudget returns a budget that allows ratio retries for each request of the
// last ttl, and perSecond retries per second in addition. 0 is the default: 10
// s, 0.2, 10. ttl is limited to 1 s to 1 min, ratio to 10 and perSecond to 1
// 000 000. A negative ratio or perSecond counts as 0.
func NewBudget(ttl time.Duration, ratio float64, perSecond int) *Budget {
	if ttl <= 0 {
		ttl = 10 * time.Second
	}
	if ratio == 0 || math.IsNaN(ratio) {
		ratio = 0.2
	}
	if perSecond == 0 {
		perSecond = 10
	}
	ttl = min(max(ttl, time.Second), time.Minute)
	ttl -= ttl % budgetBuckets // so that all buckets have the same length
	return &Budget{
		ttl:     ttl,
		ratio:   min(max(ratio, 0), 10),
		reserve: float64(min(max(perSecond, 0), 1_000_000)) * ttl.Seconds(),
		made:    time.Now(),
	}
}

// Deposit pays in for one request. Call it once per request at its first
// attempt. It does not wait.
func (b *Budget) Deposit() {
	if b.deposits.Add(1)%budgetGroup == 0 && b.mu.TryLock() {
		b.look()
		b.mu.Unlock()
	}
}

// Withdraw reports whether the budget allows one more retry or hedge, and
// charges it.
func (b *Budget) Withdraw() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look()
	if float64(b.withdrawn+1) > b.allowed() {
		return false
	}
	b.withdrawn++
	b.bucket(b.epoch).withdrawn++
	return true
}

// Balance returns how many withdrawals would be granted now.
func (b *Budget) Balance() int {
	n, _ := b.balance()
	return n
}

// balance also reports whether a withdrawal still counts.
func (b *Budget) balance() (n int, drawn bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look()
	return int(max(b.allowed()-float64(b.withdrawn), 0)), b.withdrawn > 0
}

// budgetGauge updates the gauge of a budget: at each withdrawal and, while one
// counts, at every eighth request.
type budgetGauge struct {
	to     metrics.Gauge
	budget *Budget

	mu       sync.Mutex
	drawn    atomic.Bool // a withdrawal was granted in the last ttl
	requests atomic.Uint32
}

func (g *budgetGauge) show() {
	g.mu.Lock()
	defer g.mu.Unlock()
	balance, drawn := g.budget.balance()
	g.to.Set(float64(balance))
	g.drawn.Store(drawn)
}

// follow is called for every request.
func (g *budgetGauge) follow() {
	if g.drawn.Load() && g.requests.Add(1)%budgetGroup == 0 {
		g.show()
	}
}

func (b *Budget) allowed() float64 { return b.ratio*float64(b.paidIn) + b.reserve }

func (b *Budget) bucket(epoch int64) *budgetBucket {
	return &b.buckets[epoch%int64(len(b.buckets))]
}

// look advances the buckets to now. Undated deposits are dated to the last
// look, because a later date would let them count for longer than ttl.
func (b *Budget) look() {
	now := time.Since(b.made) // read before the deposits, so that later ones are not dated too early
	deposits := b.deposits.Load()
	before := b.epochOf(b.looked)
	b.advance(b.epochOf(now))
	if fresh := deposits - b.dated; fresh > 0 && before > b.epoch-budgetBuckets {
		b.paidIn += fresh
		b.bucket(before).paidIn += fresh
	}
	b.dated, b.looked = deposits, now
}

func (b *Budget) epochOf(at time.Duration) int64 {
	return int64(at / (b.ttl / budgetBuckets))
}

// advance removes buckets that are too old from the sums.
func (b *Budget) advance(epoch int64) {
	if epoch-b.epoch > int64(len(b.buckets)) {
		b.epoch = epoch - int64(len(b.buckets))
	}
	for b.epoch < epoch {
		b.epoch++
		out := b.bucket(b.epoch)
		b.withdrawn -= out.withdrawn
		b.paidIn -= out.paidIn // 0 except for the first one after a jump
		*out = budgetBucket{}
		old := b.bucket(b.epoch + 1) // the oldest but one above: budgetBuckets before
		b.paidIn -= old.paidIn
		old.paidIn = 0
	}
}
