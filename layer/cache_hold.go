package layer

import "context"

// Pin keeps the service of key, which is made if there is none, until ctx ends,
// as if a request were open all the while: for who knows that there will be more
// requests than those that are. A service that was dropped because it refused
// with [ErrClosed] is not held any more. The error is that of a Call.
func (c *Cache[K, Req, Rsp]) Pin(ctx context.Context, key K) error {
	if ctx.Err() != nil {
		return c.refuseGone(ctx, key)
	}
	e, err := c.open(ctx, key)
	if err == nil {
		context.AfterFunc(ctx, e.Done)
	}
	return err
}
