package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	id "github.com/gotower/gotower/layer/tcplayer/identity"
)

// The ports of the control plane, which are linkerd's.
const (
	destinationPort = 8086
	caPort          = 8080
)

// controlPlane returns the addresses of the controller and the CA, and their identity, for
// the proxy of a pod. In the pod of the control plane they are on loopback.
func (r *running) controlPlane(p pod) (destination, ca, name string) {
	host := r.control.addr.String()
	name = r.control.identity()
	if p.name == r.control.name {
		host, name = "127.0.0.1", ""
	}
	return fmt.Sprintf("%s:%d", host, destinationPort), fmt.Sprintf("%s:%d", host, caPort), name
}

// anchors returns the file of the trust anchors, which the CA writes.
func (r *running) anchors() string { return r.path("run", "ca", "trust-anchors.pem") }

// tokens returns the directory of the CA's tokens.
func (r *running) tokens() string { return r.path("run", "tokens") }

// startControl runs the controller and the CA.
func (r *running) startControl(ctx context.Context) error {
	destinations, err := r.destinations()
	if err != nil {
		return err
	}
	file := r.path("run", "destinations.yaml")
	if err := write(file, string(destinations), app); err != nil {
		return err
	}
	if err := errors.Join(owned(r.path("run", "ca"), app), owned(r.tokens(), app)); err != nil {
		return err
	}
	for name, args := range map[string][]string{
		"destination": {"-listen", fmt.Sprintf(":%d", destinationPort), "-config", file, "-v"},
		"identity":    {"-listen", fmt.Sprintf(":%d", caPort), "-dir", r.path("run", "ca"), "-tokens", r.tokens()},
	} {
		if _, err := r.start(r.control, app, name, nil, append([]string{r.bin(name)}, args...)...); err != nil {
			return err
		}
	}
	return errors.Join(r.listening(ctx, r.control, destinationPort), r.listening(ctx, r.control, caPort))
}

// credentials writes the files that a client of the CA needs: a key, a certificate signing
// request, and a token of its account.
func (r *running) credentials(account, name string, uid int) (dir, token string, err error) {
	dir = r.path("run", "identity-"+name)
	if err := owned(dir, uid); err != nil {
		return "", "", err
	}
	if err := id.Generate(dir, identity(account)); err != nil {
		return "", "", err
	}
	known := filepath.Join(r.tokens(), identity(account))
	text, err := os.ReadFile(known)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(rand.Text())
		err = write(known, string(text), app)
	}
	token = filepath.Join(dir, "token")
	err = errors.Join(err, write(token, string(text), uid))
	for _, file := range []string{"key.p8", "csr.der"} {
		err = errors.Join(err, os.Chown(filepath.Join(dir, file), uid, uid))
	}
	return dir, token, err
}

// owned creates a directory that only its user and root can read.
func owned(dir string, uid int) error {
	return errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, uid, uid))
}

// write writes a file that only its user and root can read.
func write(file, text string, uid int) error {
	return errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chown(file, uid, uid)) //nolint:gosec // in a private directory
}
