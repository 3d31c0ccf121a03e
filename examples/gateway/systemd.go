package main

import (
	"context"
	"log/slog"
	"net"
	"os"
)

// notifyManager reports a state such as "READY=1" to the service manager that started the
// gateway, like systemd's sd_notify. It does nothing if there is no service manager, or if it
// does not expect reports (Type=notify).
func notifyManager(ctx context.Context, state string, log *slog.Logger) {
	// The manager passes the socket in this variable.
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unixgram", path)
	if err == nil {
		_, err = conn.Write([]byte(state))
		_ = conn.Close()
	}
	if err != nil {
		log.Warn("service manager not notified", "state", state, "err", err)
	}
}
