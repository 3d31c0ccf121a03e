package layer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"
)

// Budget limits the load that retries and hedges add, by the rule of finagle and linkerd. Each
// request deposits a fraction of a retry. On top of that, a fixed number of retries per second is
// always allowed. Layers and stacks may share a Budget. A [Hedge] also applies a smaller budget
// of its own. A Budget counts the attempts of one process. If a service behind this one also
// retries, only the outermost caller should use a Retry, because the ratios multiply. A Budget is
// safe for concurrent use.
//
// ttl, ratio and perSecond are the arguments of [NewBudget]. A withdrawal is granted if the
// number of withdrawals in the last ttl, this one included, is at most
//
//	ratio × deposits in the last ttl + perSecond × ttl
//
// A deposit expires after ttl. Times are precise to ttl/64, and rounded so that a withdrawal is
// never granted too early.
type Budget struct {
	ttl     time.Duration
	ratio   float64
	reserve float64
	start   time.Time

	deposits atomic.Uint64 // since the budget was created

	mu        sync.Mutex
	counted   uint64        // the value of deposits at the last call of advance
	advanced  time.Duration // the time of the last call of advance, since start
	epoch     int64         // the number of the current bucket, since start
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

// budgetBucket counts what happened in one of the budgetBuckets parts of ttl.
type budgetBucket struct{ paidIn, withdrawn uint64 }

// NewBudget returns a budget that allows ratio retries for each request of the last ttl, plus
// perSecond retries per second.
//
// A ttl of 0 or less means 10 s. Other values of ttl are clamped to the range from 1 s to 1 min. A
// ratio of 0 means 0.2, and a perSecond of 0 means 10. Negative values of ratio and perSecond mean
// 0. ratio is capped at 10, and perSecond at 1 000 000.
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
	// Otherwise the buckets would cover less than ttl.
	ttl -= ttl % budgetBuckets // so that all buckets have the same length
	return &Budget{
		ttl:     ttl,
		ratio:   min(max(ratio, 0), 10),
		reserve: float64(min(max(perSecond, 0), 1_000_000)) * ttl.Seconds(),
		start:   time.Now(),
	}
}

// Deposit adds the fraction of a retry that each request allows. Call it once per request, at the first
// attempt. It never blocks, and usually is one atomic addition.
func (b *Budget) Deposit() {
	// TryLock, because another goroutine that holds mu will count these deposits soon, and Deposit must not wait.
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
	// The total and the bucket of the current time change together: rotate subtracts the bucket when it expires.
	b.withdrawn++
	b.bucket(b.epoch).withdrawn++
	return true
}

// Balance returns the number of withdrawals that the budget would grant now.
func (b *Budget) Balance() int {
	n, _ := b.balance()
	return n
}

// balance returns how many withdrawals the budget would grant now, and whether it has granted one in
// the last ttl.
func (b *Budget) balance() (n int, drawn bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance()
	return int(max(b.allowed()-float64(b.withdrawn), 0)), b.withdrawn > 0
}

// budgetGauge publishes a budget's balance as a metric. The balance falls with each withdrawal, and
// rises with the deposits of later requests, until ttl after the last withdrawal. In that time, the
// metric is updated at every eighth request, which is cheaper than at each.
type budgetGauge struct {
	gauge  metrics.Gauge
	budget *Budget

	mu       sync.Mutex
	drawn    atomic.Bool // a withdrawal was granted in the last ttl
	requests atomic.Uint32
}

// show sets the metric to the current balance.
func (g *budgetGauge) show() {
	g.mu.Lock()
	defer g.mu.Unlock()
	balance, drawn := g.budget.balance()
	g.gauge.Set(float64(balance))
	g.drawn.Store(drawn)
}

// follow must be called for every request. It updates the metric at every eighth call, if a withdrawal
// was granted in the last ttl.
func (g *budgetGauge) follow() {
	if g.drawn.Load() && g.requests.Add(1)%budgetGroup == 0 {
		g.show()
	}
}

// allowed returns how many withdrawals may have been granted within the last ttl.
func (b *Budget) allowed() float64 { return b.ratio*float64(b.paidIn) + b.reserve }

// bucket returns the bucket number epoch.
func (b *Budget) bucket(epoch int64) *budgetBucket {
	return &b.buckets[epoch%int64(len(b.buckets))]
}

// advance moves the buckets to the current time, and adds the deposits since its last call. It is not
// known when each of them was made, so all of them count in the bucket of the last call: a deposit may
// expire too early, but never too late. The caller must hold mu.
func (b *Budget) advance() {
	now := time.Since(b.start) // read before the deposits, so that later ones are not counted too early
	deposits := b.deposits.Load()
	oldEpoch := b.epochOf(b.advanced)
	b.rotate(b.epochOf(now))
	// Deposits whose bucket has expired meanwhile no longer count.
	if fresh := deposits - b.counted; fresh > 0 && oldEpoch > b.epoch-budgetBuckets {
		b.paidIn += fresh
		b.bucket(oldEpoch).paidIn += fresh
	}
	b.counted, b.advanced = deposits, now
}

// epochOf returns the number of the bucket for t, a time since b.start.
func (b *Budget) epochOf(t time.Duration) int64 {
	return int64(t / (b.ttl / budgetBuckets))
}

// rotate makes the bucket number epoch the current one, and empties the expired ones. If epoch is not
// later than the current bucket, it does nothing. Deposits expire one bucket earlier than withdrawals,
// so that no withdrawal is granted too early. The caller must hold mu.
func (b *Budget) rotate(epoch int64) {
	if epoch-b.epoch > int64(len(b.buckets)) { // all buckets expire, and one round is enough
		b.epoch = epoch - int64(len(b.buckets))
	}
	for b.epoch < epoch {
		b.epoch++
		expired := b.bucket(b.epoch) // the oldest bucket, whose place the new one takes
		b.withdrawn -= expired.withdrawn
		b.paidIn -= expired.paidIn // nonzero only in the first step after b.epoch was raised above
		*expired = budgetBucket{}
		oldest := b.bucket(b.epoch + 1) // now the oldest one, budgetBuckets before b.epoch
		b.paidIn -= oldest.paidIn
		oldest.paidIn = 0
	}
}
