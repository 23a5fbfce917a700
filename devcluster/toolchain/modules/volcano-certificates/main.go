// Command volcano-certificates writes the secret with the certificates of Volcano's webhooks. Volcano's
// chart calls it as gen-admission-secret.sh: in Volcano's own image that is a shell script, which
// needs openssl and kubectl.
package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount"

func main() {
	service := flag.String("service", "", "Service of the webhooks")
	namespace := flag.String("namespace", "default", "Namespace of the service and of the secret")
	secret := flag.String("secret", "", "Name of the secret")
	flag.Parse()
	if err := run(*service, *namespace, *secret); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(service, namespace, secret string) error {
	if service == "" || secret == "" {
		return fmt.Errorf("--service and --secret must be specified")
	}
	data, err := certificates(service, namespace)
	if err != nil {
		return err
	}
	object, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]string{"name": secret}, "data": data,
	})
	if err != nil {
		return err
	}
	path := "/api/v1/namespaces/" + namespace + "/secrets"
	status, err := call(http.MethodPost, path, "application/json", object)
	if status == http.StatusConflict {
		_, err = call(http.MethodPatch, path+"/"+secret, "application/merge-patch+json", object)
	}
	return err
}

// certificates returns a new authority and a server certificate of it, valid for ten years.
func certificates(service, namespace string) (map[string][]byte, error) {
	host := service + "." + namespace + ".svc"
	root := template(1, host+" authority")
	root.IsCA, root.BasicConstraintsValid, root.KeyUsage = true, true, x509.KeyUsageCertSign
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	server := template(2, host)
	server.DNSNames = []string{service, service + "." + namespace, host}
	server.KeyUsage = x509.KeyUsageDigitalSignature
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	authority, err := x509.CreateCertificate(rand.Reader, root, root, &rootKey.PublicKey, rootKey)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.CreateCertificate(rand.Reader, server, root, &key.PublicKey, rootKey)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		"ca.crt":  encode("CERTIFICATE", authority),
		"tls.crt": encode("CERTIFICATE", certificate),
		"tls.key": encode("PRIVATE KEY", private),
	}, nil
}

func template(serial int64, name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(10, 0, 0),
	}
}

func encode(kind string, content []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
}

// call sends a request to the API server as the pod's service account.
func call(method, path, kind string, body []byte) (int, error) {
	token, err := os.ReadFile(filepath.Join(account, "token"))
	if err != nil {
		return 0, err
	}
	authority, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return 0, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	address := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	request, err := http.NewRequest(method, "https://"+address+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	request.Header.Set("Content-Type", kind)
	client := http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}},
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusMultipleChoices {
		message, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, message)
	}
	return answer.StatusCode, nil
}
