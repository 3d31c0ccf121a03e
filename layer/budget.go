package layer

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/kit/metrics"
)

// Budget bounds how much load retries and hedges add. Each request pays in a
// share of a retry, and beyond that some retries a second are always allowed:
// finagle's and linkerd's rule. One Budget may be shared by any number of
// layers and stacks; its methods are safe for concurrent use.
//
// It is exact: at every withdrawal that is granted, those of the ttl up to it,
// itself included, are at most
//
//	ratio × deposits of the same ttl + perSecond × ttl
//
// so a deposit pays once, and what is not used within ttl is lost. Rounding
// (buckets of ttl/64, and deposits that are dated in groups of eight) is always
// to the stricter side.
type Budget struct {
	ttl     time.Duration
	ratio   float64
	reserve float64
	made    time.Time

	deposits atomic.Uint64 // ever

	mu        sync.Mutex
	dated     uint64        // of deposits, those that are in a bucket
	looked    time.Duration // after made: the deposits that are not dated yet came later than that
	epoch     int64         // the bucket of the last look
	buckets   [budgetBuckets + 1]budgetBucket
	paidIn    uint64 // in the last budgetBuckets buckets: never longer than ttl
	withdrawn uint64 // in one bucket more: never shorter than ttl
}

const (
	budgetBuckets = 64
	// budgetGroup deposits share one reading of the clock.
	budgetGroup = 8
)

type budgetBucket struct{ paidIn, withdrawn uint64 }

// NewBudget returns a budget that allows ratio retries for each request of the
// last ttl, and perSecond retries a second on top. 0 stands for the default:
// 10 s, 0.2, 10.
//
// ttl is from 1 s to 1 min, ratio up to 10, perSecond up to 1 000 000; what is
// beyond is held to that. A ratio or a perSecond below 0 is none at all.
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
	ttl -= ttl % budgetBuckets // of which each is as long as the other
	return &Budget{
		ttl:     ttl,
		ratio:   min(max(ratio, 0), 10),
		reserve: float64(min(max(perSecond, 0), 1_000_000)) * ttl.Seconds(),
		made:    time.Now(),
	}
}

// Deposit pays in for one request. Call it once for each, when it was sent for
// the first time; not for its retries. It never waits.
func (b *Budget) Deposit() {
	if b.deposits.Add(1)%budgetGroup == 0 && b.mu.TryLock() {
		b.look()
		b.mu.Unlock()
	}
}

// Withdraw asks to send one request once more, as a retry or a hedge, and
// reports whether the budget allows it.
func (b *Budget) Withdraw() bool {
	_, granted := b.withdraw()
	return granted
}

// withdraw says in which bucket it was entered, for refund.
func (b *Budget) withdraw() (epoch int64, granted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look()
	if float64(b.withdrawn+1) > b.allowed() {
		return 0, false
	}
	b.withdrawn++
	b.bucket(b.epoch).withdrawn++
	return b.epoch, true
}

// Balance is how many withdrawals would be granted now.
func (b *Budget) Balance() int {
	n, _ := b.balance()
	return n
}

// balance says as well whether something was withdrawn that counts still.
func (b *Budget) balance() (n int, drawn bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look()
	return int(max(b.allowed()-float64(b.withdrawn), 0)), b.withdrawn > 0
}

// budgetGauge shows what a budget allows: when something is withdrawn, and while
// that counts still, at every eighth request.
type budgetGauge struct {
	to     metrics.Gauge
	budget *Budget

	mu       sync.Mutex
	drawn    atomic.Bool // something was withdrawn in the last ttl
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

// refund takes back a withdrawal that was not used. It must be that very one:
// were it a younger one's entry that goes, that would be forgotten too early.
func (b *Budget) refund(epoch int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if epoch <= b.epoch-int64(len(b.buckets)) {
		return // it is out of the sums by now
	}
	b.bucket(epoch).withdrawn--
	b.withdrawn--
}

func (b *Budget) allowed() float64 { return b.ratio*float64(b.paidIn) + b.reserve }

func (b *Budget) bucket(epoch int64) *budgetBucket {
	return &b.buckets[epoch%int64(len(b.buckets))]
}

// look brings the buckets up to now. Deposits made since the last look are
// dated back to that: they are not older, and counting them as younger would
// let them pay for longer than ttl.
func (b *Budget) look() {
	now := time.Since(b.made) // before the deposits are counted: what comes later is not older than that
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

// advance lets what is too old fall out of the sums.
func (b *Budget) advance(epoch int64) {
	if epoch-b.epoch > int64(len(b.buckets)) {
		b.epoch = epoch - int64(len(b.buckets))
	}
	for b.epoch < epoch {
		b.epoch++
		out := b.bucket(b.epoch)
		b.withdrawn -= out.withdrawn
		b.paidIn -= out.paidIn // 0, but for the first one after a jump
		*out = budgetBucket{}
		old := b.bucket(b.epoch + 1) // the oldest but one above: budgetBuckets before
		b.paidIn -= old.paidIn
		old.paidIn = 0
	}
}
