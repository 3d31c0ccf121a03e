package layer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"
)

// Budget limits the load that retries and hedges add, by the rule of finagle and linkerd.
// Each request deposits a fraction of a retry. In addition, a number of retries per second
// is always allowed. Layers and stacks may share a Budget. Its methods are safe for
// concurrent use.
//
// ttl, ratio and perSecond are the arguments of [NewBudget]. A withdrawal is granted if the
// number of withdrawals in the last ttl, this one included, is at most
//
//	ratio × deposits in the last ttl + perSecond × ttl
//
// A deposit expires after ttl. The precision of all times is ttl/64. Times are rounded so that a
// withdrawal is never granted too early.
type Budget struct {
	ttl     time.Duration
	ratio   float64
	reserve float64
	made    time.Time

	deposits atomic.Uint64 // since the budget was created

	mu        sync.Mutex
	counted   uint64        // the value of deposits at the last call of advance
	advanced  time.Duration // the time of the last call of advance, since made
	epoch     int64         // the number of the current bucket, since made
	buckets   [budgetBuckets + 1]budgetBucket
	paidIn    uint64 // deposits in the last budgetBuckets buckets, which cover at most ttl
	withdrawn uint64 // withdrawals in all buckets, which cover at least ttl
}

const (
	budgetBuckets = 64
	// budgetGroup is the number of deposits for which the clock is read once. A budgetGauge
	// is updated once per budgetGroup requests.
	budgetGroup = 8
)

type budgetBucket struct{ paidIn, withdrawn uint64 }

// NewBudget returns a budget that allows ratio retries for each request of the last ttl,
// and in addition perSecond retries per second.
//
// A ttl of 0 or less means 10 s. Other values of ttl are limited to the range from 1 s to 1 min. A
// ratio of 0 means 0.2, and a perSecond of 0 means 10. Negative values of these two mean 0. The
// largest ratio is 10, and the largest perSecond is 1 000 000.
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

// Deposit adds the fraction of a retry that one request allows. Call it once per request,
// at its first attempt. It never blocks.
func (b *Budget) Deposit() {
	if b.deposits.Add(1)%budgetGroup == 0 && b.mu.TryLock() {
		b.advance()
		b.mu.Unlock()
	}
}

// Withdraw reports whether the budget allows one more retry or hedge now. If it returns
// true, the retry counts as sent.
func (b *Budget) Withdraw() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance()
	if float64(b.withdrawn+1) > b.allowed() {
		return false
	}
	b.withdrawn++
	b.bucket(b.epoch).withdrawn++
	return true
}

// Balance returns the number of withdrawals that the budget would grant now.
func (b *Budget) Balance() int {
	n, _ := b.balance()
	return n
}

// balance returns the result of [Budget.Balance], and whether a withdrawal was granted in
// the last ttl.
func (b *Budget) balance() (n int, drawn bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance()
	return int(max(b.allowed()-float64(b.withdrawn), 0)), b.withdrawn > 0
}

// budgetGauge publishes the balance of a budget in a metric. A withdrawal lowers the balance, and
// each one updates the metric. The deposits of later requests raise the balance again. Therefore
// every eighth request also updates the metric, for the time ttl after a withdrawal.
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

// follow updates the gauge at every eighth call if a withdrawal was granted in the last ttl.
// Otherwise it does nothing. It must be called for every request.
func (g *budgetGauge) follow() {
	if g.drawn.Load() && g.requests.Add(1)%budgetGroup == 0 {
		g.show()
	}
}

func (b *Budget) allowed() float64 { return b.ratio*float64(b.paidIn) + b.reserve }

func (b *Budget) bucket(epoch int64) *budgetBucket {
	return &b.buckets[epoch%int64(len(b.buckets))]
}

// advance moves the buckets to the current time and adds the deposits since its previous call. The
// time of each deposit is unknown. All of them count in the bucket of the previous call, because a
// deposit must not count for longer than ttl. The caller must hold mu.
func (b *Budget) advance() {
	now := time.Since(b.made) // read before the deposits, so that later ones are not counted too early
	deposits := b.deposits.Load()
	before := b.epochOf(b.advanced)
	b.rotate(b.epochOf(now))
	if fresh := deposits - b.counted; fresh > 0 && before > b.epoch-budgetBuckets {
		b.paidIn += fresh
		b.bucket(before).paidIn += fresh
	}
	b.counted, b.advanced = deposits, now
}

func (b *Budget) epochOf(at time.Duration) int64 {
	return int64(at / (b.ttl / budgetBuckets))
}

// rotate advances the current bucket from the number b.epoch to the number in the argument epoch.
// It does nothing if that number is not higher. It subtracts the counts of expired buckets from
// b.paidIn and b.withdrawn, which are sums of buckets. The caller must hold mu.
func (b *Budget) rotate(epoch int64) {
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
