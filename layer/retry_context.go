package layer

import "context"

// attempt is the context of every try of one request: the caller's, with what
// the layers below look for. It is all that the first try has to make.
type attempt struct {
	triesContext

	budget *Budget
	paid   bool // somebody above pays in to budget
	again  bool // failures of this request are retried
}

type retryKey struct{}

func (a *attempt) Value(key any) any {
	if key == (retryKey{}) {
		return a
	}
	return a.triesContext.Value(key)
}

// retryAbove is the attempt of the nearest Retry above, or nil, of which every
// method may be called.
func retryAbove(ctx context.Context) *attempt {
	a, _ := ctx.Value(retryKey{}).(*attempt)
	return a
}

// retries reports whether a Retry, this one or one above it, will send the
// request again if it fails.
func (a *attempt) retries() bool {
	for ; a != nil; a = retryAbove(a.Context) {
		if a.again {
			return true
		}
	}
	return false
}

// WillRetry reports whether a [Retry] above the service that is called with ctx sends
// the request again if it fails. It is for a protocol in which a response may be
// returned before it is known whether it failed.
func WillRetry(ctx context.Context) bool { return retryAbove(ctx).retries() }

// paysTo reports whether a Retry, this one or one above it, pays in to b for
// the request. Who shares a budget with it does not pay again.
func (a *attempt) paysTo(b *Budget) bool {
	for ; a != nil; a = retryAbove(a.Context) {
		if a.budget == b {
			return true
		}
	}
	return false
}

func (a *attempt) pay() {
	if !a.paid {
		a.budget.Deposit()
	}
}
