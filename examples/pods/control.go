package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	identitykube "github.com/gotower/gotower/examples/identity/kube"
	id "github.com/gotower/gotower/layer/tcplayer/identity"
)

// The control plane's ports, which are those of linkerd.
const (
	destinationPort = 8086
	caPort          = 8080
)

// controlPlane returns the addresses of the controller and the CA for the proxy in the pod p.
// name is the identity that both must prove. For the control plane's pod itself, the addresses
// are on loopback and name is "", because no identity is checked.
func (r *running) controlPlane(p pod) (destination, ca, name string) {
	host := r.control.addr.String()
	name = r.control.identity()
	if p.name == r.control.name {
		host = "127.0.0.1"
		name = ""
	}
	return fmt.Sprintf("%s:%d", host, destinationPort), fmt.Sprintf("%s:%d", host, caPort), name
}

// anchors returns the path of the file with the trust anchors, which the CA writes.
func (r *running) anchors() string { return r.path("run", "ca", "trust-anchors.pem") }

// tokens returns the path of the directory with the tokens that the CA accepts.
func (r *running) tokens() string { return r.path("run", "tokens") }

// startControl starts the controller and the CA, and waits until they listen.
func (r *running) startControl(ctx context.Context) error {
	// Both functions return the flags for the controller and for the CA.
	sources := r.fileSources
	if r.kubernetes {
		sources = r.kubernetesSources
	}
	destination, ca, err := sources(ctx)
	if err != nil {
		return err
	}
	for name, args := range map[string][]string{
		"destination": append(destination, "-listen", fmt.Sprintf(":%d", destinationPort), "-v"),
		"identity":    append(ca, "-listen", fmt.Sprintf(":%d", caPort), "-dir", filepath.Dir(r.anchors())),
	} {
		if _, err := r.start(r.control, app, name, nil, append([]string{r.bin(name)}, args...)...); err != nil {
			return err
		}
	}
	// Both must listen before the proxies start.
	return errors.Join(r.listening(ctx, r.control, destinationPort), r.listening(ctx, r.control, caPort))
}

// fileSources writes the controller's configuration file, and creates the CA's directories. It
// returns the command-line flags of both.
func (r *running) fileSources(context.Context) (destination, ca []string, err error) {
	// At first, all requests for shop go to the first backend.
	file := r.path("run", "destinations.yaml")
	err = r.writeDestinations(file, r.shopSplit(100, 0))
	err = errors.Join(err, makePrivateDir(filepath.Dir(r.anchors()), app), makePrivateDir(r.tokens(), app))
	return []string{"-config", file}, []string{"-tokens", r.tokens()}, err
}

// kubernetesSources starts an API server with the cluster's objects. destination and ca are
// command-line flags for the controller and the CA program. With these flags, both use the API
// server with the rights of linkerd's service accounts.
func (r *running) kubernetesSources(ctx context.Context) (destination, ca []string, err error) {
	if err := r.startAPIServer(ctx); err != nil {
		return nil, nil, err
	}
	if err := r.makeIssuer(ctx); err != nil {
		return nil, nil, err
	}
	first, err1 := r.kubeconfig(ctx, "linkerd-destination")
	second, err2 := r.kubeconfig(ctx, "linkerd-identity")
	return []string{"-kubernetes", "-kubeconfig", first}, []string{"-kubernetes", "-kubeconfig", second}, errors.Join(err1, err2)
}

// writeDestinations replaces the controller's configuration file by one in which policy is the
// outbound policy for shop.
func (r *running) writeDestinations(file string, policy object) error {
	destinations, err := r.destinations(policy)
	if err != nil {
		return err
	}
	// The file is renamed, because the controller must never read an incomplete one.
	if err := writePrivateFile(file+".new", string(destinations), app); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// credentials writes the files with which a client, as the user uid, requests certificates for a
// service account from the CA: a key and a certificate signing request in dir, and a token at the
// path token. The directory is named after name, because several clients may use one account.
func (r *running) credentials(ctx context.Context, account, name string, uid int) (dir, token string, err error) {
	dir = r.path("run", "identity-"+name)
	if err := makePrivateDir(dir, uid); err != nil {
		return "", "", err
	}
	// id.Generate writes these files as root.
	if err := id.Generate(dir, identity(account)); err != nil {
		return "", "", err
	}
	text, err := r.token(ctx, account)
	token = filepath.Join(dir, "token")
	err = errors.Join(err, writePrivateFile(token, text, uid))
	// The client runs as another user, and must be able to read the files.
	for _, file := range []string{"key.p8", "csr.der"} {
		err = errors.Join(err, os.Chown(filepath.Join(dir, file), uid, uid))
	}
	return dir, token, err
}

// token returns a token that the CA accepts for the account.
func (r *running) token(ctx context.Context, account string) (string, error) {
	// With an API server, the tokens are those of a ServiceAccount.
	if r.apiServer != nil {
		err := r.apiServer.apply(ctx, newObject("v1", "ServiceAccount", account, nil))
		token, tokenErr := r.apiServer.token(ctx, "default", account, identitykube.Audience)
		return token, errors.Join(err, tokenErr)
	}
	// Otherwise, the CA compares a token with the one in its directory. All clients of an account share it.
	tokenPath := filepath.Join(r.tokens(), identity(account))
	text, err := os.ReadFile(tokenPath)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(rand.Text())
		err = writePrivateFile(tokenPath, string(text), app)
	}
	return string(text), err
}

// makePrivateDir creates a directory that only the user uid and root can read.
func makePrivateDir(dir string, uid int) error {
	return errors.Join(os.MkdirAll(dir, 0o700), os.Chown(dir, uid, uid))
}

// writePrivateFile writes a file that only the user uid and root can read.
func writePrivateFile(file, text string, uid int) error {
	return errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chown(file, uid, uid))
}
