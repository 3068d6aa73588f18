// Converts a Perfetto trace to Chrome's JSON with the converter of Perfetto's user interface.
//
//     node perfetto_to_json.js FOLDER TRACE > JSON
//
// FOLDER has traceconv_bundle.js and traceconv.wasm. The converter is written for a web worker, so this script provides
// the few functions of a worker that it calls.

const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [folder, trace] = process.argv.slice(2);

class MemoryFile {
  constructor(bytes) {
    this.bytes = bytes;
    this.name = 'trace';
    this.size = bytes.length;
    this.lastModifiedDate = new Date(0);
  }

  slice(start, end) {
    return new MemoryFile(this.bytes.subarray(start, end));
  }
}

const worker = {
  console: { ...console, log() {} },
  addEventListener() {},
  importScripts() {},
  location: { href: 'file:///', origin: 'file://', pathname: '/' },
  FileReaderSync: class {
    readAsArrayBuffer(file) {
      return new Uint8Array(file.bytes).buffer;
    }
  },
  async fetch(url) {
    const bytes = fs.readFileSync(path.join(folder, path.basename(String(url))));
    return new Response(bytes, { headers: { 'Content-Type': 'application/wasm' } });
  },
  XMLHttpRequest: class {
    open(method, url) {
      this.url = url;
    }

    send() {
      const bytes = fs.readFileSync(path.join(folder, path.basename(this.url)));
      this.response = new Uint8Array(bytes).buffer;
      this.responseText = '';
    }
  },
  postMessage(message) {
    if (message.kind === 'downloadFile') {
      process.stdout.write(Buffer.from(message.buffer));
    } else if (message.error || message.kind === 'error') {
      process.stderr.write(`${JSON.stringify(message)}\n`);
      process.exitCode = 1;
    }
  },
  File: MemoryFile,
  WorkerGlobalScope: function () {},
  crypto: globalThis.crypto,
};
for (const name of ['WebAssembly', 'TextDecoder', 'TextEncoder', 'URL', 'setTimeout', 'clearTimeout', 'performance',
  'Promise', 'Error', 'Uint8Array', 'Blob']) {
  worker[name] = globalThis[name];
}
worker.self = worker;
const code = fs.readFileSync(path.join(folder, 'traceconv_bundle.js'), 'utf8');
vm.runInContext(code, vm.createContext(worker));
worker.onmessage({
  data: { kind: 'ConvertTraceAndDownload', trace: new MemoryFile(fs.readFileSync(trace)), format: 'json' },
});
