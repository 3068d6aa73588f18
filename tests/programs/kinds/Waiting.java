class Waiting {
    public static void main(String[] words) throws Exception {
        System.out.println("running");
        System.in.read();
        long sum = 0;
        for (int i = 0; i < 100; i++) sum += i * i;
        System.out.println(sum);
        Runtime.getRuntime().halt(3);
    }
}
