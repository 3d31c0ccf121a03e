package layer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"
)

// Budget limits the load that retries and hedges add, by the rule of finagle and linkerd: each
// request deposits a share of a retry, and some retries per second are always allowed. Layers
// and stacks may share a Budget. Its methods are safe for concurrent use.
//
// With the arguments of [NewBudget], a withdrawal is granted if the withdrawals of the
// last ttl, itself included, are at most
//
//	ratio × deposits of the last ttl + perSecond × ttl
//
// A deposit expires after ttl. Times are rounded to ttl/64, and never in favor of a withdrawal.
type Budget struct {
	ttl     time.Duration
	ratio   float64
	reserve float64
	made    time.Time

	deposits atomic.Uint64 // since the budget was created

	mu        sync.Mutex
	counted   uint64        // deposits that have been added to a bucket
	looked    time.Duration // time of the last look since made; later deposits are not in a bucket
	epoch     int64         // the number of the bucket of the last look
	buckets   [budgetBuckets + 1]budgetBucket
	paidIn    uint64 // sum of the last budgetBuckets buckets, which cover at most ttl
	withdrawn uint64 // sum of one more bucket, which cover at least ttl
}

const (
	budgetBuckets = 64
	// budgetGroup is the number of deposits per clock reading.
	budgetGroup = 8
)

type budgetBucket struct{ paidIn, withdrawn uint64 }

// NewBudget returns a budget that allows ratio retries for each request of the last
// ttl, and perSecond retries per second in addition. The defaults for 0 are 10 s, 0.2
// and 10. ttl is limited to 1 s to 1 min, ratio to 10 and perSecond to 1 000 000. A
// negative ratio or perSecond means 0.
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

// Deposit adds the share of one request. Call it once per request, at its first
// attempt. It does not wait.
func (b *Budget) Deposit() {
	if b.deposits.Add(1)%budgetGroup == 0 && b.mu.TryLock() {
		b.look()
		b.mu.Unlock()
	}
}

// Withdraw reports whether the budget allows one more retry or hedge. If so, it is counted.
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

// Balance returns the number of withdrawals that would be granted now.
func (b *Budget) Balance() int {
	n, _ := b.balance()
	return n
}

// balance returns Balance, and whether a withdrawal was granted in the last ttl.
func (b *Budget) balance() (n int, drawn bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look()
	return int(max(b.allowed()-float64(b.withdrawn), 0)), b.withdrawn > 0
}

// budgetGauge publishes the balance of a budget: at each withdrawal and, for ttl after
// one, at every eighth request.
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

// follow is called for every request. It updates the gauge if the balance may have risen.
func (g *budgetGauge) follow() {
	if g.drawn.Load() && g.requests.Add(1)%budgetGroup == 0 {
		g.show()
	}
}

func (b *Budget) allowed() float64 { return b.ratio*float64(b.paidIn) + b.reserve }

func (b *Budget) bucket(epoch int64) *budgetBucket {
	return &b.buckets[epoch%int64(len(b.buckets))]
}

// look advances the buckets to the current time. It adds new deposits to the bucket of
// the previous call, because in a later bucket they would count for longer than ttl.
func (b *Budget) look() {
	now := time.Since(b.made) // read before the deposits, so that later ones are not counted too early
	deposits := b.deposits.Load()
	before := b.epochOf(b.looked)
	b.advance(b.epochOf(now))
	if fresh := deposits - b.counted; fresh > 0 && before > b.epoch-budgetBuckets {
		b.paidIn += fresh
		b.bucket(before).paidIn += fresh
	}
	b.counted, b.looked = deposits, now
}

func (b *Budget) epochOf(at time.Duration) int64 {
	return int64(at / (b.ttl / budgetBuckets))
}

// advance moves to the bucket epoch, and subtracts the buckets that have expired.
func (b *Budget) advance(epoch int64) {
	if epoch-b.epoch > int64(len(b.buckets)) {
		b.epoch = epoch - int64(len(b.buckets))
	}
	for b.epoch < epoch {
		b.epoch++
		out := b.bucket(b.epoch)
		b.withdrawn -= out.withdrawn
		b.paidIn -= out.paidIn // nonzero only for the first bucket after a jump
		*out = budgetBucket{}
		old := b.bucket(b.epoch + 1) // budgetBuckets before b.epoch
		b.paidIn -= old.paidIn
		old.paidIn = 0
	}
}
